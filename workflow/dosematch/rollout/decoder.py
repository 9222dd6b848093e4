"""Inference-only forward pass of Qwen3- and Llama-shaped decoders with fused projections and a static cache.

`transformers` rebuilds masks, cache objects and rotary tables at every token; on a small model that is most of the
time. Here one token costs about fifteen tensor operations per layer. Row `b` of the cache holds the token at position
`p` in column `p`, whatever its neighbours do, so that a finished row can be refilled at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dosematch.errors import UserError

ARCHITECTURES = {"qwen3", "llama"}

Cache = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of every layer, [rows, key heads, columns, head_dim]


@dataclass
class Layer:
    """Fused weights of one layer: qkv [(q+2kv)*d, hidden], gate_up [2*ffn, hidden], transposed output projections."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    head_norm: torch.Tensor | None  # [q+kv, d], absent in Llama
    out: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def _refuse_variants(config: PreTrainedConfig) -> None:
    """Raise `UserError` for what this forward pass does not compute, instead of computing something else."""
    if config.model_type not in ARCHITECTURES:
        raise UserError(f"engine torch: model_type {config.model_type!r} is not one of {sorted(ARCHITECTURES)}")
    if config.hidden_act != "silu":
        raise UserError(f"engine torch: config.json: hidden_act {config.hidden_act!r} is not supported")
    for key in ("attention_bias", "mlp_bias", "sliding_window"):
        if getattr(config, key, None):
            raise UserError(f"engine torch: config.json: {key} {getattr(config, key)!r} is not supported")


class Decoder:
    """Fused weights and the two passes over them: `prefill` whole prompts, `decode` one token per row."""

    def __init__(self, config: PreTrainedConfig, weights: Mapping[str, torch.Tensor]) -> None:
        _refuse_variants(config)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        self.ffn = config.intermediate_size
        self.config = config
        self.load_weights(weights)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Fuse a Hugging Face state dict; the tensors are copied, so later changes of the source do not show."""
        self.layers: list[Layer] = []  # the old ones go first: two copies of a large model may not fit
        self.embedding = weights["model.embed_tokens.weight"].detach().clone()
        tied = self.config.tie_word_embeddings
        self.head = self.embedding if tied else weights["lm_head.weight"].detach().clone()
        self.final_norm = weights["model.norm.weight"].detach().clone()
        self.layers = [self._fuse(weights, i) for i in range(self.config.num_hidden_layers)]
        self.cos, self.sin = self._rotary_table(self.config.max_position_embeddings)

    def _fuse(self, weights: Mapping[str, torch.Tensor], index: int) -> Layer:
        def get(name: str) -> torch.Tensor:
            return weights[f"model.layers.{index}.{name}.weight"].detach()

        head_norm = None
        if f"model.layers.{index}.self_attn.q_norm.weight" in weights:
            q_norm, k_norm = get("self_attn.q_norm"), get("self_attn.k_norm")
            head_norm = torch.cat([q_norm.expand(self.heads, -1), k_norm.expand(self.kv_heads, -1)]).contiguous()
        return Layer(
            input_norm=get("input_layernorm").clone(),
            qkv=torch.cat([get(f"self_attn.{name}_proj") for name in "qkv"]),
            head_norm=head_norm,
            out=get("self_attn.o_proj").t().contiguous(),
            post_norm=get("post_attention_layernorm").clone(),
            gate_up=torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")]),
            down=get("mlp.down_proj").t().contiguous(),
        )

    def _rotary_table(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin, [positions, 1, head_dim], so that rotation is `x * cos + roll(x, d/2) * sin`."""
        kind = self.config.rope_parameters["rope_type"]
        if kind == "default":
            exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
            frequencies = 1.0 / self.config.rope_parameters["rope_theta"] ** exponents
            scaling = 1.0
        else:
            frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](self.config, torch.device("cpu"))
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
        cos, sin = angles.cos() * scaling, angles.sin() * scaling
        table = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        like = self.embedding
        return table[0].unsqueeze(1).to(like), table[1].unsqueeze(1).to(like)

    def empty_cache(self, rows: int, columns: int) -> Cache:
        """A zeroed cache (masked columns are multiplied by zero, so they must be finite)."""
        shape = (rows, self.kv_heads, columns, self.head_dim)
        return [(self.embedding.new_zeros(shape), self.embedding.new_zeros(shape)) for _ in self.layers]

    def prefill(self, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, Cache]:
        """Read right-padded prompts.

        `ids` int64 [B, T], `lengths` int64 [B]. Returns the logits after each prompt's last token [B, V] and the keys
        and values of every layer [B, kv, T, d] (columns beyond a prompt's length are never attended to).
        """
        batch, width = ids.shape
        cos, sin = self.cos[:width].repeat(batch, 1, 1), self.sin[:width].repeat(batch, 1, 1)
        x = F.embedding(ids.reshape(-1), self.embedding)
        cache = []
        for layer in self.layers:
            q, k, v = (
                part.view(batch, width, -1, self.head_dim).transpose(1, 2) for part in self._project(layer, x, cos, sin)
            )
            cache.append((k, v))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self._finish(layer, x, attended.transpose(1, 2).reshape(batch * width, -1))
        last = x.view(batch, width, -1)[torch.arange(batch, device=ids.device), lengths - 1]
        return self._logits(last), cache

    def decode(self, ids: torch.Tensor, positions: torch.Tensor, cache: Cache, width: int) -> torch.Tensor:
        """Append one token per row and return the next logits [B, V].

        `ids`, `positions` int64 [B]; `cache` holds contiguous keys and values [B, kv, T, d] per layer, written in
        place; attention reads the first `width` columns (width > max(positions)).
        """
        columns = cache[0][0].shape[2]
        head = torch.arange(ids.shape[0] * self.kv_heads, device=ids.device)
        row_of_head = head // self.kv_heads
        flat = head * columns + positions[row_of_head]
        visible = torch.arange(width, device=ids.device) <= positions[row_of_head].unsqueeze(1)
        mask = torch.where(visible, 0.0, -torch.inf).to(self.embedding.dtype).unsqueeze(1)
        cos, sin = self.cos[positions], self.sin[positions]
        x = F.embedding(ids, self.embedding)
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            q, k, v = self._project(layer, x, cos, sin)
            keys.view(-1, self.head_dim).index_copy_(0, flat, k.reshape(-1, self.head_dim))
            values.view(-1, self.head_dim).index_copy_(0, flat, v.reshape(-1, self.head_dim))
            x = self._finish(layer, x, self._attend(q, keys, values, mask).view(ids.shape[0], -1))
        return self._logits(x)

    def _attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """One query token per row: two batched products over (row, key head), query heads of a key head together.

        `q` [B, q*d], `keys`, `values` [B, kv, T, d], `mask` [B*kv, 1, width]; returns [B*kv, q/kv, d].
        """
        width = mask.shape[-1]
        q = q.reshape(mask.shape[0], -1, self.head_dim)
        keys, values = keys.flatten(0, 1)[:, :width], values.flatten(0, 1)[:, :width]
        scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=self.head_dim**-0.5)
        return torch.bmm(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)

    def _project(
        self, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Norm, fused projection, head norms and rotation: q [N, q*d], k and v [N, kv*d], ready for attention."""
        qkv = F.linear(F.rms_norm(x, x.shape[-1:], layer.input_norm, self.eps), layer.qkv)
        rotated = self.heads + self.kv_heads
        qk = qkv[:, : rotated * self.head_dim].view(-1, rotated, self.head_dim)
        if layer.head_norm is not None:
            qk = F.rms_norm(qk, (self.head_dim,), None, self.eps) * layer.head_norm
        qk = torch.addcmul(qk * cos, qk.roll(self.head_dim // 2, -1), sin).flatten(1)
        split = self.heads * self.head_dim
        return qk[:, :split], qk[:, split:], qkv[:, rotated * self.head_dim :]

    def _finish(self, layer: Layer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection and feed-forward block, each added to the residual stream."""
        x = torch.addmm(x, attended, layer.out)
        hidden = F.linear(F.rms_norm(x, x.shape[-1:], layer.post_norm, self.eps), layer.gate_up)
        return torch.addmm(x, F.silu(hidden[:, : self.ffn]).mul_(hidden[:, self.ffn :]), layer.down)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x, x.shape[-1:], self.final_norm, self.eps), self.head)
