"""A trained model as a model of `transformers`, without a folder: the same as by `ablate export --to hf` and
`from_pretrained`, for peft, TRL and lm-evaluation-harness."""

from __future__ import annotations

from typing import Any

from ablate.addons.export import transformers_files
from ablate.config.lazy import import_library
from ablate.training.trained import TrainedModel


def to_hf(source: TrainedModel, auto: str = "AutoModelForCausalLM") -> Any:
    """Return the `PreTrainedModel` of that kind of head in evaluation mode, its weights copied. A head that the
    checkpoint does not have is initialised.

    Args:
        source: see `ablate.training.trained.open_trained`.
        auto: AutoModelForCausalLM, AutoModel or AutoModelForSequenceClassification.

    Raises AblateError for a model that is not a language model, and if `transformers` is not installed.
    """
    transformers: Any = import_library("transformers", "hf")
    files = transformers_files.build_files(source)
    if transformers_files.CODE in files.texts:
        from ablate.addons.export import modeling_ablate  # imports transformers

        config = modeling_ablate.AblateConfig(**files.config)
        model = getattr(modeling_ablate, transformers_files.AUTO[auto])(config)
        type(model).register_for_auto_class(auto)  # so that save_pretrained writes the code beside the weights
    else:
        fields = dict(files.config)
        config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
        model = getattr(transformers, auto).from_config(config)
    weights = dict(files.weights)
    if auto == "AutoModel":
        weights = {
            name.removeprefix("model."): value for name, value in weights.items() if name != transformers_files.HEAD
        }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {transformers_files.HEAD, "score.weight"}, missing
    assert set(unexpected) <= {transformers_files.HEAD}, unexpected
    model.tie_weights()
    return model.to(next(iter(weights.values())).dtype).eval()
