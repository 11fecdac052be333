"""Phonemes that a text may give for a word, and Kokoro-82M can speak: the 114 entries of `vocab` in its config.json."""

PUNCTUATION = ';:,.!?—…"()“”'
STRESS = "ˈˌ"
SYMBOLS = frozenset(
    PUNCTUATION + STRESS + " \u0303ʣʥʦʨᵝꭧAIOQSTWYᵊabcdefhijklmnopqrstuvwxyz"
    "ɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔːʰʲ↓→↗↘ᵻ"
)


def speakable(phonemes: str) -> str:
    """`phonemes` without what the model has no symbol for; the Latin g stands for the IPA ɡ."""
    return "".join(c for c in phonemes.replace("g", "ɡ") if c in SYMBOLS)
