"""A fixed description of the linear map of every edge, from the parameters alone.

1. Every writer has a write factor A (rank, d_model) and every reader a read factor B (d_model,
   rank), cut down to their ranks by QR; the edge map is A B, a small core.
2. From the cores of an edge come the size and shape of its map, and from those of its neighbours
   its share in what its writer sends and its reader receives (`DESCRIPTORS` lists all).
3. Kinds of both ends and their depth say where the edge stands.

The maps are those that do not depend on the basis a head happens to use inside. Its v can be
multiplied by any invertible matrix, if W_O is multiplied by the inverse, and so can q against k;
singular values of W_O W_Q would change with that. So a head writes by W_V W_O and is read by W_V
W_O at v, by W_Q W_K^T at q and by its transpose at k: the virtual weights of Elhage et al. (2021),
whose composition score is one of the descriptors. A reader that serves a group of heads has the
maps of all of them side by side. MLP neurons, tokens and outputs are fixed up to their order, which
singular values do not see, so their maps are the plain weights: W_out; W_in and W_gate; the
unembedding. The input writes token and position embeddings, each divided by the root of its number
of rows, so that a large vocabulary does not look like a strong writer.

A norm's weight (and the centring of LayerNorm) is folded into the maps that read through it, or
write through it where it stands after a component; so is that of queries and keys. Its
scale is left out: it depends on the prompt, and is common to all edges of a reader. So is rotation:
with rotary positions the map at q and k is the one at distance 0.

Numbers are comparable across widths: norms are logarithms, singular values shares of the norm.
Sizes are floored at `FLOOR` of the largest in the subject, so that a map of zeros has a description
too. Everything is computed in float64, reader by reader; no (width, width) map is ever formed for
two MLPs that are wider than the stream.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from graphcircuits.graph import ComponentGraph
from graphcircuits.subject.sites import READER_KINDS, WRITER_KINDS, kinds
from graphcircuits.subject.transformer import Transformer

N_SINGULAR = 4
"""How many of the largest singular values describe a map; missing ones are 0."""
FLOOR = 1e-6

DESCRIPTORS = (
    "log_norm",  # log of the Frobenius norm of the map
    *(f"singular_{i}" for i in range(N_SINGULAR)),  # divided by the Frobenius norm
    "log_rank",  # log of the effective rank, (sum of squares)^2 / sum of fourth powers
    "composition",  # norm of the map divided by the norms of its two factors
    "log_write",  # log of the norm of the write factor
    "log_read",  # log of the norm of the read factor
    "log_share_of_writer",  # of the squared norms of all maps from the writer; log, 0 = average
    "log_share_of_reader",  # of the squared norms of all maps into the reader; log, 0 = average
    "beside_writer",  # cosine to the sum of all maps from the writer, as forms on its side
    "beside_reader",  # cosine to the sum of all maps into the reader, as forms on its side
    "upstream",  # largest composition into the writer; 1 for the input
    "downstream",  # largest composition out of the reader's components; 1 for the logits
    "writer_depth",  # 0 for the input, then (layer + 1) / (layers + 1)
    "reader_depth",  # (layer + 1) / (layers + 1), 1 for the logits
    *(f"from_{kind}" for kind in WRITER_KINDS),
    *(f"to_{kind}" for kind in READER_KINDS),
)


Factors = list[Float[Tensor, "..."]]
"""Write or read factors in float64, in the order of the graph's writers or readers."""


@torch.no_grad()
def describe(subject: Transformer) -> Float[Tensor, "edge descriptor"]:
    """The `DESCRIPTORS` of every edge, in edge order, in float64 on the subject's device."""
    graph, (write_factors, read_factors) = subject.graph, factors_of(subject)
    norm, fourth, beside_writer, beside_reader, *singular = _maps(
        graph, write_factors, read_factors
    ).T
    writers, readers = (
        ends.to(subject.device) for ends in (graph.edge_writers, graph.edge_readers)
    )
    writes = torch.stack([A.norm() for A in write_factors])
    reads = torch.stack([B.norm() for B in read_factors])
    composition = norm * _inverse(writes[writers] * reads[readers])
    upstream, downstream = _neighbours(graph, composition, writers, readers)
    writer_kinds, reader_kinds = kinds(graph)
    depths = (graph.writer_layer[graph.edge_writers], graph.reader_layer[graph.edge_readers])
    columns = [
        _log(norm),
        *(value * _inverse(norm) for value in singular),
        # A map of zeros counts as rank one, the smallest.
        (norm**4 * _inverse(fourth)).clamp(min=1).log(),
        composition,
        _log(writes)[writers],
        _log(reads)[readers],
        _log_share(norm.square(), writers, len(writes)),
        _log_share(norm.square(), readers, len(reads)),
        beside_writer,
        beside_reader,
        upstream[writers],
        downstream[readers],
        *((depth.to(composition) + 1) / (graph.n_layers + 1) for depth in depths),
        *F.one_hot(writer_kinds, len(WRITER_KINDS)).to(composition)[writers].T,
        *F.one_hot(reader_kinds, len(READER_KINDS)).to(composition)[readers].T,
    ]
    return torch.stack(columns, dim=1)


def standardized(described: Float[Tensor, "edge descriptor"]) -> Float[Tensor, "edge descriptor"]:
    """Each descriptor with mean 0 and deviation 1 over the edges; 0 where it does not vary."""
    centred = described - described.mean(0)
    deviation = centred.square().mean(0).sqrt()
    # Rounding alone leaves a constant descriptor a deviation of about 1e-16.
    constant = deviation <= 1e-9 * described.abs().amax(0)
    return centred / deviation.masked_fill(constant, 1.0) * ~constant


# The factors


def factors_of(subject: Transformer) -> tuple[Factors, Factors]:
    """The write factor of every writer and the read factor of every reader."""
    config = subject.config
    w = {name: weight.double() for name, weight in subject.weights.items()}
    tables = [w["W_E"] * config.embedding_scale]
    tables += [w["W_pos"]] if config.positions == "learned" else []
    writers = [_cut(torch.cat([table / len(table) ** 0.5 for table in tables]))]
    readers: Factors = []
    for layer in range(config.n_layers):
        W_Q, W_K, W_V = (
            subject.through_norm("attn_norm", w[f"W_{name}"][layer], layer) for name in "QKV"
        )
        if config.qk_norm != "none":
            W_Q = W_Q * w["q_norm_w"][layer].unsqueeze(-2)
            W_K = W_K * w["k_norm_w"][layer].unsqueeze(-2)
        W_O, W_out = (subject.write_weight(name, layer).double() for name in ("W_O", "W_out"))
        # Side by side: the outputs, or the queries, of all heads that a group serves.
        W_O_group = W_O.unflatten(0, (config.n_groups, -1)).transpose(1, 2).flatten(2)
        W_Q_group = W_Q.unflatten(0, (config.n_groups, -1)).flatten(1, 2)
        readers += W_Q @ _cut(subject.expand_groups(W_K, dim=0)).mT
        readers += W_K @ _cut(W_Q_group).mT
        readers += W_V @ _cut(W_O_group.mT).mT
        read = [w["W_in"][layer], w["W_gate"][layer]] if config.gated_mlp else [w["W_in"][layer]]
        W_read = subject.through_norm("mlp_norm", torch.cat(read, dim=1), layer)
        readers.append(_cut(W_read.mT).mT)
        writers += _cut(subject.expand_groups(W_V, dim=0)) @ W_O
        writers.append(_cut(W_out))
    W_U = subject.unembedding.double() * config.logit_scale
    readers.append(_cut(subject.through_norm("final_norm", W_U).mT).mT)
    return writers, readers


def _cut(tall: Float[Tensor, "*lead row column"]) -> Float[Tensor, "*lead rank column"]:
    """R with R^T R = M^T M: the same map up to a rotation of its rows, of which few are left."""
    return torch.linalg.qr(tall, mode="r").R


# The edge maps


def _maps(graph: ComponentGraph, writers: Factors, readers: Factors) -> Float[Tensor, "edge _"]:
    """What is kept of the edge maps (`_summary`), of all writers of one kind at once."""
    received, sent = _stream_sums(graph, writers, readers)
    writer_kinds, _ = kinds(graph)
    first_stream = torch.searchsorted(graph.stream_reads, torch.arange(graph.n_writers), right=True)
    rows: list[Tensor] = []
    for reader, B in enumerate(readers):
        total = B.mT @ received[int(graph.reader_stream[reader])] @ B
        summaries = B.new_zeros(int(graph.reads[reader]), 4 + N_SINGULAR)
        # The writers of a kind have factors of one shape.
        for kind in range(len(WRITER_KINDS)):
            chosen = (writer_kinds[: len(summaries)] == kind).nonzero().flatten()
            if len(chosen):
                A = torch.stack([writers[writer] for writer in chosen])
                beside = A @ sent[first_stream[chosen]] @ A.mT
                summaries[chosen] = _summary(A @ B, beside, total)
        rows.append(summaries)
    return torch.cat(rows)


def _summary(
    cores: Float[Tensor, "writer write read"],
    writer_total: Float[Tensor, "writer write write"],
    reader_total: Float[Tensor, "read read"],
) -> Float[Tensor, "writer number"]:
    """One row per map: its norm, the sum of the fourth powers of its singular values, the cosines
    to all maps from its writer and into its reader (their forms add up to the totals), and its
    largest singular values."""
    singular = torch.linalg.svdvals(cores)
    fourth = singular**4
    columns = [singular.square().sum(1).sqrt(), fourth.sum(1)]
    for form, total in ((cores @ cores.mT, writer_total), (cores.mT @ cores, reader_total)):
        lengths = fourth.sum(1).sqrt() * total.square().sum((-2, -1)).sqrt()
        columns.append((form * total).sum((-2, -1)) * _inverse(lengths))
    top = F.pad(singular[:, :N_SINGULAR], (0, max(0, N_SINGULAR - singular.shape[1])))
    return torch.cat([torch.stack(columns, dim=1), top], dim=1)


def _stream_sums(
    graph: ComponentGraph, writers: Factors, readers: Factors
) -> tuple[Float[Tensor, "stream d_model d_model"], Float[Tensor, "stream d_model d_model"]]:
    """Of each stream: sum of A^T A over the writers in it, of B B^T over its and later readers."""
    ends = graph.stream_reads.tolist()
    read = readers[0].new_zeros(len(ends), *readers[0].shape[:1] * 2)
    written = torch.zeros_like(read)
    for stream, (start, end) in enumerate(pairwise([0, *ends])):
        for A in writers[start:end]:
            written[stream] += A.mT @ A
    for stream, B in zip(graph.reader_stream.tolist(), readers, strict=True):
        read[stream] += B @ B.mT
    return written.cumsum(0), read.flip(0).cumsum(0).flip(0)


def _neighbours(
    graph: ComponentGraph,
    composition: Float[Tensor, " edge"],
    writers: Int[Tensor, " edge"],
    readers: Int[Tensor, " edge"],
) -> tuple[Float[Tensor, " writer"], Float[Tensor, " reader"]]:
    """The largest composition into each writer's component, and out of each reader's."""
    into = composition.new_zeros(graph.n_readers).scatter_reduce(0, readers, composition, "amax")
    out_of = composition.new_zeros(graph.n_writers).scatter_reduce(0, writers, composition, "amax")
    upstream = composition.new_zeros(graph.n_writers)
    downstream = composition.new_zeros(graph.n_readers)
    upstream[0] = downstream[-1] = 1.0
    for reader in range(graph.n_readers - 1):
        served = graph.components_of(reader)
        so_far = upstream[served.start : served.stop]
        upstream[served.start : served.stop] = torch.maximum(so_far, into[reader])
        downstream[reader] = out_of[served.start : served.stop].max()
    return upstream, downstream


# Numbers that may be zero


def _inverse(values: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """1 / x, and 0 for 0."""
    return values.masked_fill(values == 0, torch.inf).reciprocal()


def _log(values: Float[Tensor, " any"]) -> Float[Tensor, " any"]:
    """Logarithm, floored at FLOOR of the largest value; 0 if all are 0."""
    floor = FLOOR * values.max()
    return values.clamp(min=floor).log() if floor > 0 else torch.zeros_like(values)


def _log_share(
    values: Float[Tensor, " edge"], group: Int[Tensor, " edge"], n_groups: int
) -> Float[Tensor, " edge"]:
    """log(value / mean value of its group), floored at FLOOR."""
    zeros = values.new_zeros(n_groups)
    sums = zeros.index_add(0, group, values)
    counts = zeros.index_add(0, group, torch.ones_like(values))
    return (values * (counts * _inverse(sums))[group]).clamp(min=FLOOR).log()
