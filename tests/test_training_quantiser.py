"""The quantiser and its tables: what is trained is what the shipped decoder adds up."""

import pytest
import torch
from tiny_training import tiny_nano

from training import batched
from training.codec_model import Codec, load_codec
from training.fsq import FSQ
from training.model import Nano

BOOKS = [[8, 5], [5, 5], [4, 3, 3]]


def test_values_are_levels_and_codes_bring_them_back():
    fsq = FSQ(BOOKS)
    z = 3 * torch.randn(200, 7, fsq.dims, generator=torch.Generator().manual_seed(0))
    values = fsq.quantize(z)
    for dim, levels in enumerate(fsq.levels.int().tolist()):
        assert len(values[..., dim].unique()) == levels  # each level is reached, and none between
    codes = fsq.encode(values)
    assert codes.shape == (200, 7, 3)
    assert [int(codes[..., b].max()) for b in range(3)] == [39, 24, 35] and int(codes.min()) == 0
    assert torch.equal(fsq.decode(codes), values)


def test_the_sum_of_table_rows_is_the_latent():
    fsq = FSQ(BOOKS)
    tables = fsq.tables(rows=64, width=32)
    codes = torch.stack([torch.randint(n, (50,)) for n in (40, 25, 36)], -1)
    summed = sum(tables[b, codes[:, b]] for b in range(3))
    assert torch.equal(summed[:, :fsq.dims], fsq.decode(codes)) and not summed[:, fsq.dims:].any()
    # Halves and quarters are exact in 16 bits; the thirds of 6 or 7 levels would not be.
    assert torch.equal(tables.half().float(), tables)


def test_too_few_levels_are_refused():
    with pytest.raises(ValueError, match="3 levels"):
        FSQ([[8, 2]])


def test_too_small_tables_are_refused():
    with pytest.raises(ValueError, match="too few"):
        FSQ(BOOKS).tables(rows=32, width=32)


def test_the_gradient_passes_the_rounding():
    z = torch.zeros(4, 7, requires_grad=True)
    FSQ(BOOKS).quantize(z).sum().backward()
    assert (z.grad > 0.3).all()


def test_a_config_that_says_what_nobody_reads_is_refused(tmp_path):
    nano = tiny_nano(tmp_path)
    nano.path.write_text(nano.path.read_text().replace("[use]", "[use]\nmax_words = 9"))
    with pytest.raises(ValueError, match="use.max_words: it may say single_voice, text_mode"):
        Nano.read(nano.path)


def test_dropped_books_leave_zeros():
    fsq = FSQ(BOOKS)
    kept = fsq.keep(torch.ones(3, 5, fsq.dims), torch.tensor([1, 2, 3]))
    assert kept[:, 0].sum(-1).tolist() == [2, 4, 7]


def test_the_shipped_decoder_adds_up_what_was_trained(tmp_path):
    """Codes through the product's own `push` and values through the training's pass: the same sound."""
    torch.manual_seed(0)
    nano = tiny_nano(tmp_path)
    codec = Codec(nano)
    torch.save(dict(modules=codec.state_dict(), average=None), tmp_path / "codec.pt")
    fresh = load_codec(nano, tmp_path / "codec.pt")
    rows = torch.randn(1, 82, 8 * 9)
    with torch.no_grad():
        trained = batched.waveform(fresh.code2wav, fresh.features(fresh.quantize(rows)))[0].clamp(-1, 1)
    codes = fresh.encode(rows)
    assert codes.shape == (9, 16) and not codes[:, 3:].any() and len(codes[:, 0].unique()) > 3
    spoken = fresh.speak(codes)
    assert trained.std() > 1e-4
    assert (spoken - trained).abs().max() < 1e-5
    assert (fresh.speak(codes.roll(1, 0)) - trained).abs().max() > 1e-4  # the codes do matter
