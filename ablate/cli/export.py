"""`ablate export`: write a trained model for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ablate.cli.arguments import Verbs, add_json, add_plugins, add_verb, take_plugins
from ablate.cli.output import print_json
from ablate.config.lazy import postpone_imports

with postpone_imports():
    from ablate.addons.export import push as hub
    from ablate.addons.export import run as exports
    from ablate.scheduler import donors

_SOURCE = "a run's id, the path or address (s3://...) of its folder or last.ckpt, or sweep:NAME/ARM"
_FORMS = "consolidated (torch), safetensors, hf (a folder for transformers), or timm (one for timm, of a ViT)"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    example = "ablate export RUN_ID --to hf --output exported --push OWNER/NAME"
    parser = add_verb(verbs, "export", "write a trained model for other programs", example, run)
    parser.add_argument("source", metavar="CHECKPOINT_OR_RUN", help=_SOURCE)
    parser.add_argument("--to", required=True, metavar="FORM", help=_FORMS)
    parser.add_argument("--ema", action="store_true", help="export the averaged weights (trainer.ema_decay)")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="a folder that does not exist yet")
    about = "also upload it to the Hugging Face hub; a new repository is private (token: hf auth login, or HF_TOKEN)"
    parser.add_argument("--push", metavar="NAME", help=about)
    parser.add_argument("--not-finite", action="store_true", help="also write weights that are NaN or infinite")
    add_json(parser)
    add_plugins(parser)


def run(options: argparse.Namespace) -> int:
    """Write the model, and print its location."""
    take_plugins(options.words)
    if options.push is not None:
        hub.check_push(options.push)
    source = donors.resolve_run(options.source)
    text = exports.export(source, options.to, options.output, options.ema, not options.not_finite)
    folder = Path(options.output).expanduser()
    address = None if options.push is None else hub.push(folder, options.push)
    if options.json:
        files = sorted(file.name for file in folder.iterdir())
        print_json({"form": options.to, "folder": str(folder), "files": files, "pushed": address})
    else:
        print(text)
        if address:
            print(f"pushed to {address}")
    return 0
