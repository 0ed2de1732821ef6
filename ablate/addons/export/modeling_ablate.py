"""A language model trained with Ablate, for `AutoModelForCausalLM.from_pretrained(..., trust_remote_code=True)`.

An exported folder has a copy of this file. It builds the model from the experiment in `config.json`, so Ablate has to
be installed where the folder is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    SequenceClassifierOutputWithPast,
)

try:
    from ablate import tracking
    from ablate.config import plugins
    from ablate.experiment.tree import Experiment
    from ablate.models.llama import causal
except ImportError as error:
    raise ImportError(
        "This model has norms that transformers does not have, and is built by Ablate, which is not installed here. "
        "Type, in a clone of Ablate: pip install . (the project called ablate on the package index is another one)"
    ) from error


class AblateConfig(PretrainedConfig):
    """`experiment` has the parts of Ablate's configuration that make the model; the other fields are what others ask of
    a language model."""

    model_type = "ablate"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, experiment: dict[str, Any] | None = None, use_cache: bool = True, **fields: Any) -> None:
        self.experiment, self.use_cache = experiment, use_cache
        super().__init__(**fields)


class AblatePreTrainedModel(PreTrainedModel):
    """The common base of the models below. Their embedding keeps the size that it was trained with."""

    config_class = AblateConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the weights that a checkpoint does not have, such as a new head."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **given: Any) -> nn.Module:
        if new_num_tokens not in (None, self.config.vocab_size):
            raise ValueError(
                f"The vocabulary of this model has {self.config.vocab_size} tokens, and its embedding cannot be "
                f"resized (to {new_num_tokens}). Use a token that it has, such as eos_token as pad_token."
            )
        return self.get_input_embeddings()


class AblateModel(AblatePreTrainedModel):
    """Token ids to the hidden state after the final norm, with a cache of keys and values, padded on either side."""

    _keys_to_ignore_on_load_unexpected = [r"lm_head\.", r"score\."]

    def __init__(self, config: AblateConfig) -> None:
        super().__init__(config)
        assert config.experiment is not None
        with plugins.restrict(tracking.has_plugin, f"the configuration of {config.name_or_path or 'the model'}"):
            experiment = Experiment.from_mapping(config.experiment)
        length = getattr(config, "max_position_embeddings", None) or 0
        with torch.random.fork_rng(devices=[]):  # its initial weights are replaced
            self.net: Any = experiment.build_model(config.vocab_size, (length,))
        del self.net.lm_head  # that of the classes below, or none
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.net.embed_tokens

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **ignored: Any,
    ) -> BaseModelOutputWithPast:
        """`last_hidden_state` [batch, seq, hidden]. `attention_mask`: [batch, past + seq], 0 for padding, or
        [batch, 1, seq, keys] as attention takes it. `position_ids` count from the first token that is no padding."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.net.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        recompute = self.gradient_checkpointing and self.training
        cache = past_key_values
        if cache is None and (self.config.use_cache if use_cache is None else use_cache) and not recompute:
            cache = DynamicCache()
        past = 0 if cache is None else int(cache.get_seq_length())
        position, mask = positions(
            attention_mask if len(self.net.layers) else None, past, x
        )  # without, nothing attends

        states: list[Tensor] | None = [] if output_hidden_states else None
        note = None if states is None else lambda state: states.append(self.net.placement.show(state))
        layers = [
            partial(step, layer, partial(attend, cache, index, mask), note)
            for index, layer in enumerate(self.net.layers)
        ]
        if recompute:
            layers = [partial(self._gradient_checkpointing_func, layer) for layer in layers]
        x = self.net.hidden_state(x, position if position_ids is None else position_ids, layers)
        return BaseModelOutputWithPast(
            last_hidden_state=x, past_key_values=cache, hidden_states=None if states is None else (*states, x)
        )


def positions(given: Tensor | None, past: int, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """(position of each token, which keys it sees), the latter None where these are all up to itself. `given` is the
    mask over `past` cached tokens and those of `x`."""
    seq, device = x.shape[1], x.device
    position = torch.arange(past, past + seq, device=device)
    if given is not None and given.ndim == 4:
        return position, given
    padded = given is not None and not bool(given.all())
    if not padded and past == 0:
        return position, None
    query, key = position.unsqueeze(1), torch.arange(past + seq, device=device)
    seen = (key <= query)[None, None]  # [1, 1, seq, past + seq]
    if padded:
        assert given is not None
        if given.shape[-1] != past + seq:
            raise ValueError(f"attention_mask is over {given.shape[-1]} tokens, and there are {past} + {seq}")
        # padding sees itself: of nothing at all there would be no average
        seen = seen & given.bool()[:, None, None] | (key == query)
        position = (given.long().cumsum(-1) - 1).clamp(min=0)[:, past:]
    return position, seen


def attend(cache: Any, index: int, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sink: Any = None) -> Tensor:
    """The attention of layer `index`, whose keys and values are kept in the `cache`, if there is one."""
    if cache is not None:
        k, v = cache.update(k, v, index)
    if mask is None:
        return causal(q, k, v, sink)
    if sink is not None:
        attended: Tensor = sink(q, k, v, mask)
        return attended
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=k.shape[1] != q.shape[1])


def step(layer: nn.Module, how: Callable[..., Tensor], note: Callable[[Any], None] | None, x: Any, *given: Any) -> Any:
    """One layer, attending as `how` says. `note` is called with its input, if that is asked for."""
    if note is not None:
        note(x)
    return layer(x, *given, attend=how)


class AblateForCausalLM(AblatePreTrainedModel, GenerationMixin):
    """Token ids to logits."""

    _tied = {"lm_head.weight": "model.net.embed_tokens.weight"}
    _tied_weights_keys = _tied if int(transformers.__version__.split(".")[0]) >= 5 else list(_tied)

    def __init__(self, config: AblateConfig) -> None:
        super().__init__(config)
        self.model = AblateModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        **given: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [batch, seq, vocabulary], of the last `logits_to_keep` positions if that is not 0; with `labels`, of
        which -100 does not count, the mean loss of predicting each from those before it."""
        out = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, output_hidden_states
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.net.logit_scale(self.lm_head(out.last_hidden_state[:, kept]))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **given)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=out.past_key_values, hidden_states=out.hidden_states
        )


class AblateForSequenceClassification(AblatePreTrainedModel):
    """Token ids to one score for each of `num_labels`, from the last token that is no padding."""

    def __init__(self, config: AblateConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = AblateModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **ignored: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Scores [batch, num_labels]. Without `attention_mask`, padding is what `config.pad_token_id` says."""
        out = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, output_hidden_states
        )
        logits = self.score(out.last_hidden_state)
        seq = torch.arange(logits.shape[1], device=logits.device)
        if attention_mask is not None:
            there = attention_mask[:, -len(seq) :] != 0
        elif input_ids is not None and self.config.pad_token_id is not None:
            there = input_ids != self.config.pad_token_id
        else:
            there = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        last = (seq * there).argmax(-1)
        scores = logits[torch.arange(len(logits), device=logits.device), last]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, pooled_logits=scores, config=self.config)
        return SequenceClassifierOutputWithPast(
            loss=loss, logits=scores, past_key_values=out.past_key_values, hidden_states=out.hidden_states
        )
