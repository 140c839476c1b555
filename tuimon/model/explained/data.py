"""Causes that lie in the data and its labels."""

from __future__ import annotations

from tuimon.model.explained.entry import Explanation

DATA = {
    "data-nonfinite": Explanation(
        "NaN or Inf in the batch",
        "The batch holds a non-finite value before any layer has seen it.",
        "Missing cells, a failed preprocessing (division by a spread of 0), broken files. Once a "
        "step has been taken with it, weights and normalisation statistics are lost.",
        "Find the sample, fill or drop it, check the data when it is loaded; go back to the last "
        "clean checkpoint if an update was made.",
        "assert torch.isfinite(x).all(), index  # in Dataset.__getitem__\nx = torch.nan_to_num(x)",
    ),
    "data-scale": Explanation(
        "inputs or targets orders of magnitude off",
        "Inputs or targets lie in the hundreds or beyond: the first gradients are as large, and "
        "the first update destroys the weights, or usual steps never get there. Inputs of a "
        "millionth teach nothing either.",
        "Initialisation and usual learning rates assume inputs of order 1.",
        "Standardise each feature; the learning rate is not the first thing to change.",
        "x = (x - mean) / (std + 1e-6)  # of the training set, per feature",
    ),
    "data-degenerate": Explanation(
        "finite but impossible sample",
        "A sample is formally valid but has no meaning: a box of width 0, a target longer than its "
        "input, a constant clip.",
        "Its encoding takes a logarithm or quotient of 0, or has probability 0.",
        "Filter such samples when the data is loaded.",
        "keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])\nboxes = boxes[keep]",
    ),
    "label-range": Explanation(
        "target outside the range the loss expects",
        "A class index is negative or not below the number of classes, or a probability lies "
        "outside [0, 1].",
        "Labels that start at 1, a class that was not counted, masks stored as 0 and 255. Binary "
        "cross-entropy with logits does not refuse targets above 1: its loss falls below 0 without "
        "end. On a GPU the error names another line, because it is reported late.",
        "Map labels to 0 … classes - 1; divide masks by 255.",
        "y = y - 1  # labels that start at 1",
    ),
    "label-semantics": Explanation(
        "labels unrelated to the inputs",
        "The loss stays where guessing puts it, although gradients, learning rate and predictions "
        "are healthy.",
        "Inputs and labels were shuffled or sorted apart, or joined by the wrong key.",
        "Look at some pairs; shuffle both with one permutation.",
        "order = torch.randperm(len(x))\nx, y = x[order], y[order]",
    ),
    "data-outlier": Explanation(
        "batches from another distribution",
        "The loss jumps with the batch, before any large update, and returns with the data.",
        "A bad shard, another tokenizer, concentrated long documents.",
        "Look at the batches of the spike, drop or shuffle them. Clipping the gradient norm bounds "
        "what such a batch does under SGD; under Adam it bounds only what enters the moments.",
        "loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)",
    ),
}
