"""A fast forward for decoding, over the model's own weights, for families that share one design.

The families are Qwen3 (the embedded policy is one), Qwen2, Llama (SmolLM and SmolLM2 too) and
Mistral. They differ in the norms of queries and keys, in biases, in rotary tables, and in whether
the head is tied.

On a small model a step's time is the overhead of its operations, not their arithmetic. So this
forward has few operations. q, k and v are one product, gate and up are one, and a product adds its
residual itself. Keys and values are written into their slots in place, and shared heads are not
copied. Rotary tables are computed once. A prompt's tokens are in one flat row, which is padded for
attention only, and the head computes the last token alone. On a large model it counts that a prompt
needs no mask: with the model's own forward, prompts of 4,096 tokens take several times as long.

The fused weights are the model's own memory: `_fuse` puts q, k and v side by side in one tensor and
makes the model's parameters views of its parts. So a weight that an optimizer or a merge changes in
place is at once the weight that is sampled with, and no second copy can go stale. Parameters that
got other memory (`.to`, `.data =`) are noticed before the next token, and put side by side again.

What happens between two products is in rft/sampling/attention.py.

No weight changes during a session, so `begun` makes faster copies for a session. There the weight
of a norm is multiplied into the product that follows it, and weights are packed for oneDNN
(rft/kernels/onednn.py).

Adapters that run beside the weights (rft/models/unmerged.py) are fused too: the down projections of
q, k and v are stacked, and their up projections are the blocks of one matrix. So adapters add only
two small products to a product.

`fast_forward` returns None and the reason for a model that it does not know, and for a model whose
own forward gives other logits on a small probe.

Shapes: as in rft/sampling/kv_cache.py; N tokens of a call in one row, Q query heads, G query heads
per key/value head, I width of the feed-forward part.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from rft.kernels import onednn
from rft.models.unmerged import Unmerged
from rft.sampling.attention import Attention, Heads, Prompts, Step, normal
from rft.sampling.kv_cache import Feed, ModelForward, Slots

KNOWN = ("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}
"""Allowed difference, as a share of the largest logit."""


class _Multiplied(Protocol):
    """A product of a layer."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...
    def onto(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add the product to the residual."""
        ...


@dataclass(frozen=True, slots=True)
class _Product:
    """Linear layers side by side, as one product, with the adapters beside them. `by_onednn`: the
    weight is packed for oneDNN, and its numbers cannot be read (rft/kernels/onednn.py)."""

    weight: torch.Tensor
    by_onednn: bool
    bias: torch.Tensor | None = None
    down: torch.Tensor | None = None
    up: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.down is not None and self.up is not None:
            return self._added(functional.linear(functional.linear(x, self.down), self.up, self.bias), x)
        return (onednn.linear if self.by_onednn else functional.linear)(x, self.weight, self.bias)

    def onto(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        is_plain = self.down is None and self.bias is None
        return self._added(residual, x) if is_plain else residual + self(x)

    def _added(self, sum_: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return onednn.linear_onto(sum_, x, self.weight) if self.by_onednn else torch.addmm(sum_, x, self.weight.T)

    def begun(self, norm: torch.Tensor | None, in_bfloat16: bool) -> _Multiplied:
        """Return a copy for a session, with the weights of the norm before it multiplied in."""
        weight = self.weight if norm is None else self.weight * norm
        if in_bfloat16:
            return _Bfloat16Product(onednn.packed_bfloat16(weight), self.bias)
        packed = onednn.packed(weight)
        return _product_of(weight, self.bias) if packed is None else _Product(packed, True, self.bias)

    def after(self, first: int) -> _Product:
        """Return the part that makes the outputs from `first` on."""
        bias, up = (None if held is None else held[first:] for held in (self.bias, self.up))
        return _product_of(self.weight[first:], bias, self.down, up)


@dataclass(frozen=True, slots=True)
class _Bfloat16Product:
    """A product of numbers that are rounded to bfloat16 and summed in float32. Its result is
    rounded to bfloat16, too."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = onednn.linear(x.bfloat16(), self.weight).float()
        return out if self.bias is None else out.add_(self.bias)

    def onto(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual + self(x)


def _product_of(weight: torch.Tensor, *others: torch.Tensor | None) -> _Product:
    return _Product(weight, onednn.serves(weight), *others)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's weights as they are multiplied. `before`, `between`: the norms' weights; None where
    the products contain them. `qk_norm_2D`: row 0 for queries, 1 for keys; None where the model has
    no such norms."""

    before: torch.Tensor | None
    qkv: _Multiplied
    kv: _Multiplied
    qk_norm_2D: torch.Tensor | None
    out: _Multiplied
    between: torch.Tensor | None
    gate_up: _Multiplied
    down: _Multiplied


def _begun(layer: _Layer, is_last: bool, low: bool) -> _Layer:
    """Return a copy for a session. Only the last layer computes keys and values without queries.
    `low`: with products in bfloat16."""

    def for_session(product: _Multiplied, norm: torch.Tensor | None = None) -> _Multiplied:
        assert isinstance(product, _Product), "begun twice"
        return product.begun(norm, low)

    qkv, kv = for_session(layer.qkv, layer.before), for_session(layer.kv, layer.before) if is_last else layer.kv
    gate_up = for_session(layer.gate_up, layer.between)
    return _Layer(None, qkv, kv, layer.qk_norm_2D, for_session(layer.out), None, gate_up, for_session(layer.down))


def fast_forward(model: Any) -> tuple[FastForward | None, str]:
    """Return the forward; or None, and the reason."""
    if why := _unknown(model):
        return None, why
    forward = FastForward(model)
    difference, largest = _probe(model, forward.begun())
    if not difference <= TOLERANCE[model.dtype] * largest:
        return None, f"its own forward gives other logits (by {difference:.2g} of {largest:.3g})"
    return forward, ""


class FastForward:
    """A kv_cache.Forward for the models that `fast_forward` accepts."""

    def __init__(self, model: Any):
        config = model.config
        self.model = model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim, self.eps = model.model.layers[0].self_attn.head_dim, config.rms_norm_eps
        self._lay_out()
        self._rotary(256)

    @property
    def no_bfloat16(self) -> str:
        """Say why products cannot be in bfloat16 with weights in float32; empty if they can."""
        if not self._is_plain:
            return "the model has an adapter beside its weights, or is not in float32 on a CPU"
        return "" if onednn.has_bfloat16() else "this processor, or this build of PyTorch, has no products in bfloat16"

    @torch.inference_mode()
    def begun(self, in_bfloat16: bool = False) -> FastForward:
        """Return a forward for one session. `in_bfloat16`: for all products but the head's. The
        numbers between products, and attention, stay in float32."""
        self._heads(0)
        assert not (in_bfloat16 and self.no_bfloat16), self.no_bfloat16
        if not self._is_plain:
            return self
        one = copy.copy(self)
        final = len(self._layers) - 1
        one._layers = [_begun(layer, number == final, in_bfloat16) for number, layer in enumerate(self._layers)]
        one._head, one._last_norm = self._head.begun(self._last_norm, False), None
        one._places = []  # no weight changes
        return one

    # -- the two calls -----------------------------------------------------------------------------
    @torch.inference_mode()
    def prefill(self, slots: Slots, feeds: Sequence[Feed]) -> torch.Tensor:
        slots.hold(max(feed.end for feed in feeds))
        heads = self._heads(slots.length)
        attend = Prompts(slots, heads, feeds)
        ids_N = torch.tensor([token for feed in feeds for token in feed.ids], device=slots.keys_LSHTD.device)
        return self._run(ids_N, attend, attend.last_B)

    @torch.inference_mode()
    def step(self, slots: Slots, ids_B: torch.Tensor, positions_B: torch.Tensor, visible: int) -> torch.Tensor:
        slots.hold(visible)
        heads = self._heads(slots.length)
        return self._run(ids_B, Step(slots, heads, positions_B, visible), None)

    def _run(self, ids_N: torch.Tensor, attend: Attention, last_B: torch.Tensor | None) -> torch.Tensor:
        x_NE = functional.embedding(ids_N, self._embedding)
        *layers, final = self._layers
        for number, layer in enumerate(layers):
            qkv = layer.qkv(self._normal(x_NE, layer.before))
            x_NE = self._ended(layer, x_NE, attend(number, qkv, layer.qk_norm_2D))
        x, number = self._normal(x_NE, final.before), len(layers)
        if last_B is None:
            attended = attend(number, final.qkv(x), final.qk_norm_2D)
        else:
            # Only each row's last token is read from the last layer. The other tokens only give it
            # keys and values.
            attended = attend.last(number, final.qkv(x[last_B]), final.kv(x), final.qk_norm_2D)
            x_NE = x_NE[last_B]
        return self._head(self._normal(self._ended(final, x_NE, attended), self._last_norm)).float()

    def _ended(self, layer: _Layer, x_NE: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Do what comes after attention in a layer."""
        x_NE = layer.out.onto(x_NE, attended)
        gate, up = layer.gate_up(self._normal(x_NE, layer.between)).chunk(2, -1)
        return layer.down.onto(x_NE, functional.silu(gate).mul_(up))

    def _normal(self, x_NE: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return normal(x_NE, self._eps, weight)

    # -- weights and tables ------------------------------------------------------------------------
    def _heads(self, length: int) -> Heads:
        """Return the heads. If a weight got other memory, lay the weights out again; if the tables
        are too short, extend them."""
        if any(tensors[name].data_ptr() != place for tensors, name, place in self._places):
            self._lay_out()
        if length > len(self._tables[0]):
            self._rotary(length)
        return Heads(self.heads, self.kv_heads, self.dim, self._eps, *self._tables)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _lay_out(self) -> None:
        self._places: list[tuple[dict[str, Any], str, int]] = []
        body = self.model.model
        self._embedding = self._as_is(body.embed_tokens)
        self._last_norm: torch.Tensor | None = self._as_is(body.norm)
        self._head: Any = self._product(self.model.lm_head)
        self._layers = [self._layer(layer) for layer in body.layers]
        self._eps = torch.tensor(self.eps, device=self._embedding.device)
        has_adapters = any(isinstance(module, Unmerged) for module in self.model.modules())
        is_float = self._embedding.dtype == torch.float32 and self._embedding.device.type == "cpu"
        self._is_plain = is_float and not has_adapters

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        is_normed = hasattr(attention, "q_norm")
        qkv = self._product(attention.q_proj, attention.k_proj, attention.v_proj)
        return _Layer(
            before=self._as_is(layer.input_layernorm),
            qkv=qkv,
            kv=qkv.after(self.heads * self.dim),
            qk_norm_2D=self._fuse(attention.q_norm, attention.k_norm).view(2, -1) if is_normed else None,
            out=self._product(attention.o_proj),
            between=self._as_is(layer.post_attention_layernorm),
            gate_up=self._product(mlp.gate_proj, mlp.up_proj),
            down=self._product(mlp.down_proj),
        )

    def _as_is(self, module: Any, name: str = "weight") -> torch.Tensor:
        self._at(module._parameters, name)
        return module._parameters[name].detach()

    def _at(self, tensors: dict[str, Any], name: str) -> None:
        """Note where a tensor lies, to notice when it gets other memory."""
        self._places.append((tensors, name, tensors[name].data_ptr()))

    def _product(self, first: Any, *others: Any) -> _Product:
        weight = self._fuse(first, *others)
        bias = None if first.bias is None else self._fuse(first, *others, name="bias")
        return _product_of(weight, bias, *self._adapters([first, *others]))

    def _adapters(self, modules: Sequence[Any]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Put the modules' adapters side by side; the modules hold views of them."""
        adapted = [module for module in modules if isinstance(module, Unmerged)]
        if not adapted:
            return None, None
        down = torch.cat([module.down for module in adapted])
        up = down.new_zeros(sum(len(module.weight) for module in modules), len(down))
        row, column = 0, 0
        for module in modules:
            outputs = len(module.weight)
            if isinstance(module, Unmerged):
                rank = len(module.down)
                up[row : row + outputs, column : column + rank] = module.up
                module.down = down[column : column + rank]
                module.up = up[row : row + outputs, column : column + rank]
                for name in ("down", "up"):
                    self._at(module._buffers, name)
                column += rank
            row += outputs
        return down, up

    def _fuse(self, *modules: Any, name: str = "weight") -> torch.Tensor:
        """Put the modules' weights side by side; from now on the modules hold views of them."""
        if len(modules) == 1:
            return self._as_is(modules[0], name)
        held = [module._parameters[name] for module in modules]
        fused = torch.cat([parameter.detach() for parameter in held])
        for module, parameter, part in zip(modules, held, fused.split([len(one) for one in held]), strict=True):
            parameter.data = part
            self._as_is(module, name)
        return fused

    @torch.no_grad()
    def _rotary(self, length: int) -> None:
        """Keep the model's own tables of cosine and sine, with the sine's first half negated."""
        device = self._embedding.device
        positions = torch.arange(length, device=device)[None]
        cos, sin = self.model.model.rotary_emb(self._embedding[:1], positions)
        half = self.dim // 2
        self._tables = cos[0].contiguous(), torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)


# -- which models, and whether it is right ---------------------------------------------------------
def _unknown(model: Any) -> str:
    """Say why the forward above does not know this model; empty if it does."""
    config = model.config
    if type(model).__name__ not in KNOWN:
        return f"no fast path for {type(model).__name__}"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ("default", "linear", "yarn", "llama3"):
        return f"rotary positions of type {rope}"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"layers of kind {sorted(kinds - {'full_attention'})}"
    if config.hidden_act != "silu" or model.dtype not in TOLERANCE:
        return f"hidden_act {config.hidden_act}, {model.dtype}"
    linear = [module for module in model.modules() if hasattr(module, "in_features")]
    if any(type(module) not in (torch.nn.Linear, Unmerged) for module in linear) or any(
        parameter.is_inference() for parameter in model.parameters()
    ):
        return "its weights are wrapped, quantized, or made in inference mode"
    return ""


@torch.inference_mode()
def _probe(model: Any, forward: FastForward) -> tuple[float, float]:
    """Return the largest difference from the model's own forward, and the largest logit, over two
    dialogues that begin, take a step and go on."""
    config = model.config
    device = model.model.embed_tokens.weight.device
    rows = [[(7 * n + 3) % config.vocab_size for n in range(9)], [(11 * n + 5) % config.vocab_size for n in range(14)]]
    ids = torch.tensor([1 % config.vocab_size, 2 % config.vocab_size], device=device)
    found = []
    for compute in (ModelForward(model), forward):
        slots = Slots(config.num_hidden_layers, 2, config.num_key_value_heads, 16, forward.dim, model.dtype, device)
        begun = compute.prefill(slots, [Feed(0, 0, rows[0]), Feed(1, 0, rows[1])])
        spoken = compute.step(slots, ids, torch.tensor([9, 14], device=device), 15)
        told = compute.prefill(slots, [Feed(1, 15, rows[0]), Feed(0, 10, rows[1][:3])])
        found.append(torch.cat((begun, spoken, told)))
    return (found[0] - found[1]).abs().max().item(), found[0].abs().max().item()
