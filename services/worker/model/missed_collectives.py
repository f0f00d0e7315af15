"""The collectives that a rank still owes the others when it runs out of memory within a forward.

It takes part in them with zeros, since the others would otherwise wait forever. In the last one, which gathers the
chosen tokens, it contributes NO_TOKEN, so that every rank knows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from services.worker.model.forward_batch import ForwardBatch
from services.worker.model.model_runner import NO_TOKEN, Runner, rows_with_top_tokens, truncated_rows
from services.worker.model.row_padding import num_padded_rows


def missed_collectives(batch: ForwardBatch, runner: Runner, num_done: int) -> Iterator[tuple[bool, Tensor]]:
    """The forward's collectives after the first `num_done`: whether each is a sum or a gather, and this rank's values.

    A forward sums attention and MLP of each layer, gathers the logits if a row is truncated, the highest logits and
    those of labels if clients want them, the mean embeddings of canvases, and the tokens.
    """
    config, count = runner.config, len(batch.rows)
    fed, kept = (len(batch.tokens), config.width), (num_padded_rows(count), config.width)
    sums = list[tuple[int, ...]]([fed] * (2 * config.num_layers - 2) + [kept] * 2)
    if config.canvas:  # the dense part and the experts of a layer side by side
        kept = count, config.width
        sums = [*[fed, (2, *fed)] * (config.num_layers - 1), kept, (2, *kept)]
    for summed in sums[num_done:]:
        yield True, torch.zeros(summed, dtype=runner.dtype, device=runner.device)
    gathers = list[tuple[tuple[int, ...], torch.dtype]]()
    if len(truncated_rows(batch)) and not config.canvas:
        gathers.append(((count, runner.decoder.head_rows), runner.dtype))
    if num_top := len(rows_with_top_tokens(batch)):
        gathers.append(((2, num_top, int(batch.top_logprobs.max())), torch.float64))
    if num_scored := len(batch.scored_rows):
        gathers.append(((num_scored,), torch.float64))
    if config.canvas:
        gathers.append((kept, runner.dtype))
    for shape, dtype in gathers[max(0, num_done - len(sums)) :]:
        yield False, torch.zeros(shape, dtype=dtype, device=runner.device)
    if num_done <= len(sums) + len(gathers):
        # As `best_of` or `read_canvas` returns
        best = torch.zeros((6 if config.canvas else 4, count), dtype=torch.float64, device=runner.device)
        best[3 if config.canvas else 2] = NO_TOKEN
        yield False, best
