"""The norm layers, the placements and both model families a second time: plain functions of tensors, written from the
papers' formulas. Nothing here comes from `ablate`; only the names of the parameters are shared."""

import math

import numpy as np
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


def derf(x, p, c):
    """By quadrature of 2/sqrt(pi) z exp(-(z u)^2) over u from 0 to 1."""
    z = (p["alpha"] * x + p["shift"]).clamp(-6, 6)
    erf = 0.0
    for node, weight in zip(*np.polynomial.legendre.leggauss(48), strict=True):
        erf = erf + weight / math.sqrt(math.pi) * z * torch.exp(-((z * (1 + node) / 2) ** 2))
    return erf * p["weight"] + p["bias"]


def preaffine(x, p, c):
    return rmsnorm(p["scale"] * x, p, c)


def gatednorm(x, p, c):
    y = rmsnorm(x, p, c)
    inner = y @ p["down"].T
    return y / (1 + torch.exp(-(inner / (1 + torch.exp(-inner))) @ p["up"].T))


def none(x, p, c):
    return x


NORMS = {
    f.__name__: f
    for f in (
        rmsnorm, rmsnorm1p, layernorm, centernorm, prmsnorm, groupnorm, batchnorm, dyt, derf, preaffine, gatednorm,
        none,
    )
}  # fmt: skip
ELEMENTWISE = ("dyt", "derf")
"""Those that need a learned factor of the token embedding."""

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


def hybrid_star(x, attn, mlp, n, s, nth, L):
    return pre(x, attn, mlp, n, s, nth, L) if nth == 1 else hybrid(x, attn, mlp, n, s, nth, L)


def keel(x, attn, mlp, n, s, nth, L):
    if nth == 1:
        x = x + attn(n[0](x))
        return n[2](x + mlp(n[1](x)))
    x = n[1](2 * L * x + attn(n[0](x)))
    return n[3](2 * L * x + mlp(n[2](x)))


def gpas(x, attn, mlp, n, s, nth, L):
    (g,) = s
    silu = g / (1 + torch.exp(-g))
    for norm, f in zip(n, (attn, mlp), strict=True):
        x = x + f(norm(x))
        x = x - silu * x.detach()
    return x


def unit(x):
    return x / (x * x).sum(-1, keepdim=True) ** 0.5


def ngpt(x, attn, mlp, n, s, nth, L):
    for f, stored in zip((attn, mlp), s, strict=True):
        rate = (stored * 0.05 * math.sqrt(x.shape[-1])).abs()
        h = unit(x)
        x = unit(h + rate * (unit(f(x)) - h))
    return x


UPDATES = 300
"""Updates after which the factors of ProRes are read, of 1,000 in which that of the first layer grows."""


def prores(x, attn, mlp, n, s, nth, L):
    share = UPDATES / 1000 / nth
    x = x + share * attn(n[0](x))
    return x + share * mlp(n[1](x))


# several streams: h [..., n, d]


def hc(h, attn, mlp, n, s, nth, L):
    for f, (norm, of_stream), own in ((attn, n[:2], s[:6]), (mlp, n[2:], s[6:])):
        a, b, by_a, by_b, scale_a, scale_b = own
        rows = [h[..., i, :] for i in range(h.shape[-2])]
        normed = of_stream(h)
        a = a + scale_a * torch.tanh(normed @ by_a)
        b = b + scale_b * torch.tanh(normed @ by_b)
        mixed = [sum(a[..., i, j, None] * row for i, row in enumerate(rows)) for j in range(len(rows) + 1)]
        u = f(norm(mixed[0]))
        h = torch.stack([b[..., j, :] * u + mixed[1 + j] for j in range(len(rows))], -2)
    return h


def of_streams(h, projection, base, scale, sizes):
    v = torch.cat([h[..., i, :] for i in range(h.shape[-2])], -1)
    z = v / ((v * v).sum(-1, keepdim=True) / v.shape[-1] + 1e-6) ** 0.5 @ projection.T
    scales = torch.cat([one.expand(size) for one, size in zip(scale, sizes, strict=True)])
    return (z * scales + base).split(sizes, -1)


def mhc(h, attn, mlp, n, s, nth, L):
    for f, norm, (projection, base, scale) in ((attn, n[0], s[:3]), (mlp, n[1], s[3:])):
        k = h.shape[-2]
        r, p, c = of_streams(h, projection, base, scale, (k, k, k * k))
        r, p = 1 / (1 + torch.exp(-r)) + 1e-6, 2 / (1 + torch.exp(-p))
        c = torch.exp(c.reshape(*c.shape[:-1], k, k))
        c = c / c.sum(-1, keepdim=True) + 1e-6
        for i in range(20):
            c = c / (c.sum(-1, keepdim=True) + 1e-6) if i else c
            c = c / (c.sum(-2, keepdim=True) + 1e-6)
        u = f(norm(sum(r[..., i, None] * h[..., i, :] for i in range(k))))
        h = torch.stack(
            [p[..., j, None] * u + sum(c[..., i, j, None] * h[..., i, :] for i in range(k)) for j in range(k)], -2
        )
    return h


# a pair (X, Y), and (x, x0)


def siamese(pair, attn, mlp, n, s, nth, L):
    X, Y = pair
    for f, (post, before, inside) in ((attn, n[:3]), (mlp, n[3:])):
        X = post(X)
        u = f(inside(X + before(Y)))
        X, Y = X + u / math.sqrt(2 * nth), Y + u
    return X, Y


def siamese_hybrid(pair, attn, mlp, n, s, nth, L):
    X, Y = pair
    u = attn(s[0] * X + n[0](Y))
    X, Y = X + u / math.sqrt(2 * nth), Y + u
    X = n[1](X)
    u = mlp(n[3](X + n[2](Y)))
    return X + u / math.sqrt(2 * nth), Y + u


def x0(pair, attn, mlp, n, s, nth, L):
    x, start = pair
    x = pre(s[0] * x + s[1] * start, attn, mlp, n, s, nth, L)
    return x, start


# (finished sums, the sum so far or None)


def weighted(sources, query, gain):
    scores = [(v / ((v * v).sum(-1) / v.shape[-1] + 1e-6)[..., None] ** 0.5 * gain) @ query for v in sources]
    top = torch.stack([torch.exp(score) for score in scores])
    return sum(share[..., None] * v for share, v in zip(top / top.sum(0), sources, strict=True))


def attnres(state, attn, mlp, n, s, nth, L):
    sources, total = state
    pairs = [(None, None), s] if nth == 1 else [s[:2], s[2:]]
    for f, norm, (query, gain) in zip((attn, mlp), n, pairs, strict=True):
        values = [*sources] if total is None else [*sources, total]
        u = f(norm(values[0] if query is None else weighted(values, query, gain)))
        total = u if total is None else total + u
    return [*sources, total], None  # two sublayers make a block


OPEN = {
    "hc": lambda x: torch.stack([x] * 4, -2),
    "mhc": lambda x: torch.stack([x] * 4, -2),
    "siamese": lambda x: (x, x),
    "siamese_hybrid": lambda x: (x, x),
    "x0": lambda x: (x / ((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6) ** 0.5,) * 2,
    "attnres": lambda x: ([x], None),
}
"""Placement -> the first state of the embedding; the others' is the embedding."""
CLOSE = {
    "hc": lambda h, w: h.sum(-2),
    "mhc": lambda h, w: h.sum(-2) / h.shape[-2],
    "siamese": lambda pair, w: w.norm("close.close.post")(pair[0]) + w.norm("close.close.pre")(pair[1]),
    "siamese_hybrid": lambda pair, w: w.norm("close.close.post")(pair[0]) + w.norm("close.close.pre")(pair[1]),
    "x0": lambda pair, w: pair[0],
    "attnres": lambda state, w: weighted(state[0], w["close.close.aggregate.query"], w["close.close.aggregate.gain"]),
}
"""Placement -> the input of the final norm of the last state."""
QKV_NORMED = ("hybrid", "hybrid_star", "siamese_hybrid")

LAYERS = {
    "hybrid_star": hybrid_star,
    "keel": keel,
    "ngpt": ngpt,
    "gpas": gpas,
    "prores": prores,
    "hc": hc,
    "mhc": mhc,
    "siamese": siamese,
    "siamese_hybrid": siamese_hybrid,
    "x0": x0,
    "attnres": attnres,
    "sandwich_scaled": sandwich,
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
        inside = {f"{child}." for own in children.values() for child in own}
        below = [(name, p) for side in sides for name, p in self.below(f"{side}.").items()]
        return norms, [p for name, p in below if not name.startswith(tuple(inside))]


TWO = ("before", "after")
NORMS_OF = {
    "sandwich": TWO,
    "sandwich_scaled": TWO,
    "peri": TWO,
    "keel": TWO,
    "hc": ("norm", "stream_norm"),
    "siamese": ("post", "pre", "input"),
    "siamese_hybrid": ("post", "pre", "input"),
    "gpas": ("inner.norm",),
}
"""Placement -> what the norms of a sublayer are called; others have one."""


def children(kind, nth):
    """What the norms of a layer are called."""
    names = NORMS_OF.get(kind, ("norm",))
    attn = {"hybrid": (), "hybrid_star": ("norm",) if nth == 1 else (), "siamese_hybrid": ("pre",)}
    attn["keel"] = ("norm",) if nth == 1 else names
    return {"attn_residual": attn.get(kind, names), "mlp_residual": names}


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
    x = w["embed_scale.scale"] * x if w.kind in ELEMENTWISE else x
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

    x = OPEN.get(kinds[0], lambda x: x)(x)

    for i in range(layers):
        at = f"layers.{i}"

        def attn(h, at=at, i=i):
            parts = (h @ w[f"{at}.attn.qkv_proj.weight"].T).split(d, -1)
            q, k, v = (t.reshape(batch, seq, heads, size).transpose(1, 2) for t in parts)
            if kinds[i] in QKV_NORMED:
                q, k, v = (w.norm(f"{at}.attn.qkv_norm.{name}")(t) for name, t in zip("qkv", (q, k, v), strict=True))
            if w.qk:
                q, k = w.qk_norm(f"{at}.attn.qkv_norm.q", q), w.qk_norm(f"{at}.attn.qkv_norm.k", k)
            q, k = rotated(q), rotated(k)
            if kinds[i] == "ngpt":  # the logits are sqrt(size) (s u(q)) (s u(k))
                s = (w[f"{at}.attn.unit.scale.weight"] * math.sqrt(d)).reshape(heads, 1, size)
                q, k = size * s * unit(q), s * unit(k)
            y = attention(q, k, v, causal=True).transpose(1, 2).reshape(batch, seq, d)
            return (w.norm(f"{at}.attn.norm")(y) if kinds[i] == "subln" else y) @ w[f"{at}.attn.o_proj.weight"].T

        def mlp(h, at=at, i=i):
            both = h @ w[f"{at}.mlp.gate_up_proj.weight"].T
            if kinds[i] == "ngpt":
                both = both * w[f"{at}.mlp.scale.weight"] * math.sqrt(d)
            gate, up = both.chunk(2, -1)
            y = gate * torch.sigmoid(gate) * up
            return (w.norm(f"{at}.mlp.norm")(y) if kinds[i] == "subln" else y) @ w[f"{at}.mlp.down_proj.weight"].T

        x = rule(x, attn, mlp, *w.wiring(at, children(kinds[i], i + 1)), i + 1, layers)
    x = CLOSE[kinds[-1]](x, w) if kinds[-1] in CLOSE else x
    if kinds[0] == "ngpt":
        return x @ w["lm_head.weight"].T * w["logit_scale.weight"] * math.sqrt(d)
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
    x = OPEN.get(kinds[0], lambda x: x)(x)

    for i in range(layers):
        at = f"vit.blocks.{i}"

        def linear(h, name, at=at):
            return h @ w[f"{at}.{name}.weight"].T + w[f"{at}.{name}.bias"]

        def attn(h, at=at, i=i, linear=linear):
            hybrid = kinds[i] in QKV_NORMED
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

        x = rule(x, attn, mlp, *w.wiring(at, children(kinds[i], i + 1)), i + 1, layers)
    x = CLOSE[kinds[-1]](x, w) if kinds[-1] in CLOSE else x
    x = (w.norm("vit.norm")(x) if final_norm else x)[:, 0]
    return x @ w["vit.head.weight"].T + w["vit.head.bias"]


MODELS = {"llama": llama, "vit": vit}
