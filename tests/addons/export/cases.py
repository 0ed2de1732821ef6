"""Language models of every kind that is exported."""

import torch

from ablate.experiment.tree import Experiment
from ablate.norms import norm_layers, placements

VOCAB, SEQ = 53, 21
COMPLETE_P = {"kind": "complete_p", "base": {"hidden": 16, "layers": 2, "head_dim": 4}}
LLAMA = {"model": {"kind": "llama", "hidden": 32, "mlp": 44, "layers": 4, "heads": 4}, "data.seq_len": SEQ}
ATTENTION = {"gate": "headwise", "sink": "learned", "value_residual": "learned", "temperature": True}
WITHOUT_RMSNORM = [layer for layer in norm_layers if layer not in ("rmsnorm", "batchnorm")]
CASES = [
    *((kind, {}) for kind in placements),
    *(("pre", {"norm.layer": layer}) for layer in WITHOUT_RMSNORM),
    ("pre", {"model.kv_heads": 2, "model.rope_base": 500.0, "norm.layer.eps": 1e-3}),
    ("pre", {"model.tie_embeddings": True}),
    ("pre", {"norm.final_norm": False}),
    ("pre", {"norm.qk": "rmsnorm", "model.kv_heads": 2, "model.head_dim": 12}),
    ("olmo2", {"norm.qk": "rmsnorm", "norm.qk_over": "width", "model.kv_heads": 2}),
    ("olmo2", {"norm.qk": "rmsnorm", "model.kv_heads": 2}),
    ("sandwich", {"model.kv_heads": 2, "model.head_dim": 12, "model.rope_base": 500.0, "model.tie_embeddings": True}),
    ("pre", {"norm.layer": {"kind": "layernorm", "eps": 1e-3}, "model.kv_heads": 2}),
    ("pre", {"norm.layer": {"kind": "layernorm", "bias": False}}),
    ("pre", {"norm.layer": "layernorm", "model.head_dim": 12}),
    ("post", {"norm.qk": "layernorm", "norm.qk_over": "width", "model.kv_heads": 2}),
    ("pre", {"norm.qk": {"kind": "rmsnorm", "eps": 1e-3}}),
    *(("pre", {"model.attention": {name: value}}) for name, value in ATTENTION.items()),
    *((kind, {"model.attention.qk_clip": 1.0}) for kind in ("pre", "post")),
    ("mix", {"model.attention": ATTENTION, "model.kv_heads": 2}),
    *((kind, {"model.layers": 0}) for kind in ("pre", "peri", "mix", "deepnorm")),
    *((kind, {"model.sublayers": "attn"}) for kind in ("pre", "b2t", "hybrid", "lns")),
    *((kind, {"parametrization": COMPLETE_P}) for kind in ("pre", "lns", "sandwich")),
    ("mix", {"model.tie_embeddings": True, "model.kv_heads": 1, "norm.first": "deepnorm", "norm.second": "lns"}),
]


def checkpoint(folder, settings, sizes=LLAMA, classes=VOCAB, shape=(SEQ,)):
    """(path of a checkpoint, its model), with every parameter away from its initial value."""
    experiment = Experiment.from_mapping(sizes, settings)
    torch.manual_seed(1)
    model = experiment.build_model(classes, shape).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    file = folder / "last.ckpt"
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": state, "experiment": experiment.to_tree(), "global_step": 3}, file)
    return file, model
