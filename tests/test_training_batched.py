"""The batched passes give what the shipped modules give, one utterance at a time."""

import torch
from tiny_training import tiny_nano

from training import batched
from training.model import Speech
from tts_cli.qwen3tts.layers import StreamState

TOLERANCE = 2e-5


def speech(tmp_path) -> Speech:
    torch.manual_seed(3)
    model = Speech(tiny_nano(tmp_path))
    for p in model.parameters():  # what starts at one or zero must count, too
        p.data += 0.1 * torch.randn(p.shape) * p.abs().mean().clamp(min=0.1)
    return model


@torch.no_grad()
def test_code2wav(tmp_path):
    wav = speech(tmp_path).code2wav
    latent = torch.randn(2, 80, wav.config.width)  # longer than the window of attention
    sound = batched.waveform(wav, batched.features(wav, latent))
    for row, made in zip(latent, sound, strict=True):
        state = StreamState()
        x = wav._transform(wav.pre_conv(row.T, state).T, state).T
        for up, convnext in wav.upsample:
            x = convnext(up(x, state), state)
        x = wav.entry(x, state)
        for block in wav.decoder:
            x = block(x, state)
        expected = wav.post_conv(wav.post_snake(x), state)[0]
        assert expected.std() > 1e-3 and (made - expected).abs().max() < TOLERANCE


@torch.no_grad()
def test_decoder(tmp_path):
    for decoder in (speech(tmp_path).talker.decoder, speech(tmp_path).predictor.decoder):
        x = torch.randn(3, 21, decoder.config.hidden)
        layers = range(decoder.config.layers)
        hidden, watched = batched.decoder(decoder, x, watch=layers)
        for row, made in zip(x, hidden, strict=True):
            assert (decoder(row, decoder.new_cache(21)) - made).abs().max() < TOLERANCE
        assert [attention.shape for attention in watched.attention] == [(3, 21, 21)] * len(layers)
        assert all(torch.allclose(attention.sum(-1), torch.ones(3, 21)) for attention in watched.attention)
        assert torch.equal(watched.rows, x) and batched.decoder(decoder, x)[1].rows is None


def test_dropout_changes_only_training(tmp_path):
    decoder = speech(tmp_path).talker.decoder
    x = torch.randn(1, 9, decoder.config.hidden)
    plain, _ = batched.decoder(decoder, x)
    dropped, _ = batched.decoder(decoder, x, dropout=0.5)
    assert not torch.allclose(plain, dropped)
    assert torch.equal(plain, batched.decoder(decoder, x)[0])
