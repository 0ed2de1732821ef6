"""The norm layers, the placements and both model families a second time: plain functions of tensors, written from the
papers' formulas. Nothing here comes from `ablate`; only the names of the parameters are shared."""

import math

import torch
import torch.nn.functional as F

# ------------------------------------------------------------ norm layers: x, their parameters p, their settings c


def rmsnorm(x, p, c):
    return x / ((x * x).sum(-1, keepdim=True) / x.shape[-1] + c["eps"]) ** 0.5 * p["weight"]


def rmsnorm1p(x, p, c):
    return rmsnorm(x, {"weight": 1 + p["weight"]}, c)


def layernorm(x, p, c):
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / (variance + c["eps"]) ** 0.5 * p["weight"] + p.get("bias", 0.0)


def centernorm(x, p, c):
    return (x - x.sum(-1, keepdim=True) / x.shape[-1]) * p["weight"]


def prmsnorm(x, p, c):
    k = math.ceil(x.shape[-1] * c["p"])
    return x / ((x[..., :k] ** 2).sum(-1, keepdim=True) / k + c["eps"]) ** 0.5 * p["weight"]


def groupnorm(x, p, c):
    size = x.shape[-1] // c["groups"]
    ones = {"weight": 1.0}
    parts = [layernorm(x[..., i * size : (i + 1) * size], ones, c) for i in range(c["groups"])]
    return torch.cat(parts, -1) * p["weight"] + p["bias"]


def batchnorm(x, p, c):
    over = tuple(range(x.dim() - 1))
    mean = x.mean(over)
    variance = ((x - mean) ** 2).mean(over)
    return (x - mean) / (variance + c["eps"]) ** 0.5 * p["weight"] + p["bias"]


def dyt(x, p, c):
    slope = p["alpha"] * x
    e = torch.exp(-2 * slope.abs())
    return slope.sign() * (1 - e) / (1 + e) * p["weight"] + p["bias"]


def none(x, p, c):
    return x


NORMS = {f.__name__: f for f in (rmsnorm, rmsnorm1p, layernorm, centernorm, prmsnorm, groupnorm, batchnorm, dyt, none)}

# --- placements: one layer from x, its sublayers, its norms n, its learned factors s, its number from 1, the depth L


def pre(x, attn, mlp, n, s, nth, L):
    x = x + attn(n[0](x))
    return x + mlp(n[1](x))


def post(x, attn, mlp, n, s, nth, L):
    x = n[0](x + attn(x))
    return n[1](x + mlp(x))


def deepnorm(x, attn, mlp, n, s, nth, L):
    alpha = math.pow(2 * L, 1 / 4)
    x = n[0](alpha * x + attn(x))
    return n[1](alpha * x + mlp(x))


def deepnorm_of_the_published_code(x, attn, mlp, n, s, nth, L):
    x = n[0](2.8284271247461903 * x + attn(x))
    return n[1](2.8284271247461903 * x + mlp(x))


def minimax(x, attn, mlp, n, s, nth, L):
    alpha = math.pow(2 * L, 1 / 4)
    h = n[0](x)
    x = alpha * h + attn(h)
    h = n[1](x)
    return alpha * h + mlp(h)


def minimax_without_the_factor(x, attn, mlp, n, s, nth, L):
    h = n[0](x)
    x = h + attn(h)
    h = n[1](x)
    return h + mlp(h)


def lns(x, attn, mlp, n, s, nth, L):
    x = x + attn(n[0](x) / math.sqrt(nth))
    return x + mlp(n[1](x) / math.sqrt(nth))


def lns_before_norm(x, attn, mlp, n, s, nth, L):
    x = x + attn(n[0](x / math.sqrt(nth)))
    return x + mlp(n[1](x / math.sqrt(nth)))


def lns_after_sublayer(x, attn, mlp, n, s, nth, L):
    x = x + attn(n[0](x)) / math.sqrt(nth)
    return x + mlp(n[1](x)) / math.sqrt(nth)


def lns_after_residual(x, attn, mlp, n, s, nth, L):
    x = (x + attn(n[0](x))) / math.sqrt(nth)
    return (x + mlp(n[1](x))) / math.sqrt(nth)


def lns_after_attn(x, attn, mlp, n, s, nth, L):
    x = x + attn(n[0](x)) / math.sqrt(nth)
    return x + mlp(n[1](x))


def lns_after_mlp(x, attn, mlp, n, s, nth, L):
    x = x + attn(n[0](x))
    return x + mlp(n[1](x)) / math.sqrt(nth)


def sandwich(x, attn, mlp, n, s, nth, L):
    x = x + n[1](attn(n[0](x)))
    return x + n[3](mlp(n[2](x)))


def olmo2(x, attn, mlp, n, s, nth, L):
    x = x + n[0](attn(x))
    return x + n[1](mlp(x))


def scaled(x, attn, mlp, n, s, nth, L):
    x = x + s[0] * attn(n[0](x))
    return x + s[1] * mlp(n[1](x))


def admin(x, attn, mlp, n, s, nth, L):
    x = n[0](s[0] * x + attn(x))
    return n[1](s[1] * x + mlp(x))


def b2t(x, attn, mlp, n, s, nth, L):
    a = n[0](x + attn(x))
    return n[1](x + a + mlp(a))


def hybrid(x, attn, mlp, n, s, nth, L):
    y = x + attn(x)
    h = n[0](y)
    return h + mlp(h)


LAYERS = {
    "pre": pre,
    "post": post,
    "deepnorm": deepnorm,
    "deepnorm_of_the_published_code": deepnorm_of_the_published_code,
    "minimax": minimax,
    "minimax_without_the_factor": minimax_without_the_factor,
    "lns": lns,
    "lns_before_norm": lns_before_norm,
    "lns_after_sublayer": lns_after_sublayer,
    "lns_after_residual": lns_after_residual,
    "lns_after_attn": lns_after_attn,
    "lns_after_mlp": lns_after_mlp,
    "sandwich": sandwich,
    "peri": sandwich,
    "olmo2": olmo2,
    "layerscale": scaled,
    "residual_scalar": scaled,
    "subln": pre,
    "b2t": b2t,
    "hybrid": hybrid,
    "admin": admin,
}

# ------------------------------------------------------------------------------------------------------------- models


class Weights:
    """The parameters of a model by name, and the norms that they belong to."""

    def __init__(self, parameters, kind, settings, qk=None):
        self.all, self.kind, self.settings, self.qk = dict(parameters), kind, settings, qk

    def __getitem__(self, name):
        return self.all[name]

    def below(self, prefix):
        return {name[len(prefix) :]: p for name, p in self.all.items() if name.startswith(prefix)}

    def norm(self, prefix):
        return lambda x: NORMS[self.kind](x, self.below(f"{prefix}."), self.settings)

    def qk_norm(self, prefix, x):
        """Queries or keys [batch, heads, seq, head_dim], normed over each head or over the whole width."""
        kind, settings, over = self.qk
        if over == "head":
            return NORMS[kind](x, self.below(f"{prefix}."), settings)
        batch, heads, seq, size = x.shape
        wide = x.transpose(1, 2).reshape(batch, seq, heads * size)
        wide = NORMS[kind](wide, self.below(f"{prefix}."), settings)
        return wide.reshape(batch, seq, heads, size).transpose(1, 2)

    def wiring(self, layer, children):
        """(norms, learned factors) of a layer, the attention's before the MLP's."""
        sides = (f"{layer}.attn_residual", f"{layer}.mlp_residual")
        norms = [self.norm(f"{side}.{child}") for side in sides for child in children[side.rpartition(".")[2]]]
        factors = [p for side in sides for name, p in self.below(f"{side}.").items() if name in ("scale", "omega")]
        return norms, factors


def children(kind):
    """What the norms of a layer are called."""
    names = ("before", "after") if kind in ("sandwich", "peri") else ("norm",)
    return {"attn_residual": () if kind == "hybrid" else names, "mlp_residual": names}


def attention(q, k, v, causal):
    """[batch, heads, seq, head_dim] each."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        n = scores.shape[-1]
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    return torch.softmax(scores, -1) @ v


def llama(tokens, w, layers, heads, kinds, rule, embedding_norm, final_norm):
    """Logits. `kinds`: each layer's placement; `rule`: one layer's formula."""
    x = F.one_hot(tokens, w["embed_tokens.weight"].shape[0]).to(w["embed_tokens.weight"].dtype)
    x = x @ w["embed_tokens.weight"]
    x = w["embed_scale.scale"] * x if w.kind == "dyt" else x
    x = w.norm("embed_norm")(x) if embedding_norm else x
    batch, seq, d = x.shape
    size = d // heads
    table = torch.outer(
        torch.arange(seq).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size)
    )  # float32, as the model's own
    cos, sin = (torch.cat([f(table)] * 2, -1).to(x.dtype) for f in (torch.cos, torch.sin))

    def rotated(t):
        half = torch.cat([-t[..., size // 2 :], t[..., : size // 2]], -1)
        return t * cos + half * sin

    for i in range(layers):
        at = f"layers.{i}"

        def attn(h, at=at, i=i):
            parts = (h @ w[f"{at}.attn.qkv_proj.weight"].T).split(d, -1)
            q, k, v = (t.reshape(batch, seq, heads, size).transpose(1, 2) for t in parts)
            if kinds[i] == "hybrid":
                q, k, v = (w.norm(f"{at}.attn.qkv_norm.{name}")(t) for name, t in zip("qkv", (q, k, v), strict=True))
            if w.qk:
                q, k = w.qk_norm(f"{at}.attn.qkv_norm.q", q), w.qk_norm(f"{at}.attn.qkv_norm.k", k)
            y = attention(rotated(q), rotated(k), v, causal=True).transpose(1, 2).reshape(batch, seq, d)
            return (w.norm(f"{at}.attn.norm")(y) if kinds[i] == "subln" else y) @ w[f"{at}.attn.o_proj.weight"].T

        def mlp(h, at=at, i=i):
            gate, up = (h @ w[f"{at}.mlp.gate_up_proj.weight"].T).chunk(2, -1)
            y = gate * torch.sigmoid(gate) * up
            return (w.norm(f"{at}.mlp.norm")(y) if kinds[i] == "subln" else y) @ w[f"{at}.mlp.down_proj.weight"].T

        x = rule(x, attn, mlp, *w.wiring(at, children(kinds[i])), i + 1, layers)
    return (w.norm("norm")(x) if final_norm else x) @ w["lm_head.weight"].T


def vit(images, w, layers, heads, kinds, rule, embedding_norm, final_norm, patch=2):
    """Logits. As `llama`."""
    batch = images.shape[0]
    kernel = w["vit.patch_embed.proj.weight"]
    d = kernel.shape[0]
    patches = F.unfold(images, patch, stride=patch).transpose(1, 2)  # [batch, patches, channels * patch^2]
    x = patches @ kernel.reshape(d, -1).T + w["vit.patch_embed.proj.bias"]
    x = torch.cat([w["vit.cls_token"].expand(batch, 1, d), x], 1) + w["vit.pos_embed"]
    x = w.norm("vit.norm_pre")(x) if embedding_norm else x
    seq, size = x.shape[1], d // heads

    for i in range(layers):
        at = f"vit.blocks.{i}"

        def linear(h, name, at=at):
            return h @ w[f"{at}.{name}.weight"].T + w[f"{at}.{name}.bias"]

        def attn(h, at=at, i=i, linear=linear):
            hybrid = kinds[i] == "hybrid"
            wrapped = hybrid or (w.qk and w.qk[2] == "width")
            parts = linear(h, "attn.qkv.projection" if wrapped else "attn.qkv").split(d, -1)
            q, k, v = (t.reshape(batch, seq, heads, size).transpose(1, 2) for t in parts)
            if hybrid:
                q, k, v = (w.norm(f"{at}.attn.qkv.norm.{name}")(t) for name, t in zip("qkv", (q, k, v), strict=True))
            if w.qk:
                q_norm, k_norm = (f"attn.qkv.norm.{x}" if wrapped else f"attn.{x}_norm" for x in "qk")
                q, k = w.qk_norm(f"{at}.{q_norm}", q), w.qk_norm(f"{at}.{k_norm}", k)
            y = attention(q, k, v, causal=False).transpose(1, 2).reshape(batch, seq, d)
            return linear(w.norm(f"{at}.attn.norm")(y) if kinds[i] == "subln" else y, "attn.proj")

        def mlp(h, at=at, i=i, linear=linear):
            y = linear(h, "mlp.fc1")
            y = y * (1 + torch.erf(y / 2**0.5)) / 2
            return linear(w.norm(f"{at}.mlp.norm")(y) if kinds[i] == "subln" else y, "mlp.fc2")

        x = rule(x, attn, mlp, *w.wiring(at, children(kinds[i])), i + 1, layers)
    x = (w.norm("vit.norm")(x) if final_norm else x)[:, 0]
    return x @ w["vit.head.weight"].T + w["vit.head.bias"]


MODELS = {"llama": llama, "vit": vit}
