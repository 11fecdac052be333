"""What the talker is told beside the next code, through linear layers that only training has.

To speak, a talker must read: know how each letter sounds and when, find the letter that is due, and say its sounds.
Each of these is told where it has to be known, else all must be found out from the codes at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.batched import Watched
from training.talker_data import LETTER_SOUNDS, SOUNDS, Batch

PERIODS = (5, 10, 20, 40, 80, 160, 320)  # frames; of the hands of the clock
_SPREAD = 1.2           # frames around its time in which a token may be looked at


class Hints(nn.Module):
    """hidden: width of the talker's rows; symbols: how many sounds there are; books: of them, each of `codes`."""

    def __init__(self, hidden: int, symbols: int, books: int, codes: int):
        super().__init__()
        self.sounds = nn.Linear(hidden, SOUNDS * symbols)
        self.codes = nn.Linear(hidden, books * codes)
        self.letters = nn.Linear(hidden, LETTER_SOUNDS * symbols)
        self.clock = nn.Linear(hidden, 2 * len(PERIODS))

    def of_frames(self, hidden: Tensor, sounds: Tensor, codes: Tensor) -> dict[str, Tensor]:
        """From what codebook 0 is read from, [N, H]: nats of

        sounds  the sounds in and around each frame, int64 [N, SOUNDS]
        alone   a code of the frame, int64 [N, books], each told by itself
        """
        books = codes.shape[1]
        return {"sounds": _entropy(self.sounds(hidden), sounds),
                "alone": _entropy(self.codes(hidden).unflatten(-1, (books, -1)), codes)}

    def of_text(self, watched: Watched, batch: Batch) -> dict[str, Tensor]:
        """From the rows that enter the first watched layer:

        letters  nats of the sounds around the time of a token, told at its row of `Batch.keys`
        clock    squared error of the time, of a token and of a frame alike, so that they can find each other
        """
        rows = F.rms_norm(watched.rows, watched.rows.shape[-1:])
        number = torch.arange(rows.shape[1], device=rows.device) - batch.starts[:, None] + 1  # of the frame it predicts
        frames = (number >= 0) & (number < batch.lengths[:, None])
        told = batch.keys | frames
        # In the layout "streaming" a row may be both; then it is the frame's.
        times = torch.where(frames, number + 0.5, batch.centres)[told]
        angles = 2 * torch.pi * times[:, None] / torch.tensor(PERIODS, device=rows.device)
        hands = torch.cat((angles.cos(), angles.sin()), -1)
        return {"letters": _entropy(self.letters(rows[batch.keys]), batch.letters[batch.keys]),
                "clock": F.mse_loss(self.clock(rows[told]).float(), hands)}


def guide(watched: Watched, batch: Batch, index: Tensor, said: Tensor) -> dict[str, Tensor]:
    """Soft alignment of one head (Tachibana et al. 2017) of each watched layer, with the teacher's times for the
    diagonal. index [B, F + 1]: the row that predicts each frame; said: whether there is one.

    guide  -log of the attention near the right text;  text: all that the last of them gives to the text
    """
    guides = []
    now = torch.arange(index.shape[1], device=index.device)[:, None] + 0.5
    near = (-((now - batch.centres[:, None]) / _SPREAD).square() / 2).exp() * batch.keys[:, None]
    for attention in watched.attention:
        n = attention.shape[-1]
        rows = attention.float().gather(1, index[:, :, None].clamp(max=n - 1).expand(-1, -1, n))  # [B, F + 1, n]
        guides.append(-(rows * near).sum(-1).clamp(min=1e-5).log()[said].mean())
    return {"guide": torch.stack(guides).mean(), "text": (rows * batch.keys[:, None]).sum(-1)[said].mean()}


def _entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over what is known; logits [N, ...], target int64 [N, k], k choices among as many as fit."""
    known = (target >= 0).sum().clamp(min=1)
    logits = logits.float().reshape(target.numel(), -1)
    return F.cross_entropy(logits, target.flatten(), reduction="sum") / known
