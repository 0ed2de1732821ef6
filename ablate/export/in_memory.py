"""A trained model as a model of `transformers`, without a folder: the same as by `ablate export --to hf` and
`from_pretrained`, for peft, TRL and lm-evaluation-harness."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ablate.config.extras import import_library
from ablate.export import transformers_files
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
    if code := files.texts.get(transformers_files.CODE):
        module = _import_code(code)
        config = module.AblateConfig(**files.config)
        model = getattr(module, transformers_files.AUTO[auto])(config)
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


def _import_code(code: str) -> ModuleType:
    """Return the code as an imported module, one for each source text: it may be pickled, and `save_pretrained` finds
    its file."""
    package = f"ablate_exported_{hashlib.sha256(code.encode()).hexdigest()[:16]}"
    name = f"{package}.{Path(transformers_files.CODE).stem}"
    if name not in sys.modules:
        file = _make_code_folder() / package / transformers_files.CODE
        file.parent.mkdir()
        file.write_text(code, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@cache
def _make_code_folder() -> Path:
    """Return the folder of such code, which lives as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="ablate-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
