"""``esper expand``: deepen or widen a Transformers checkpoint without changing its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from esper.cli.arguments import Metavar, Positional, UsageError, parse
from esper.cli.output import command_progress, print_wrapped, require_writable
from esper.config.checks import Bounds, PositiveInt
from esper.errors import escape_controls
from esper.storage.transformers_folder import read_checkpoint, require_new


@dataclass(frozen=True, kw_only=True)
class ExpandOptions:
    """Add blocks or hidden units to a Transformers checkpoint, without changing its outputs.

    The new folder is loaded again and compared before it gets its name. Train the new parts next:
    growth.json in the folder lists them.
    """

    checkpoint: Annotated[str, Positional("CHECKPOINT")]
    """Folder of the model: config.json and safetensors."""

    deepen: PositiveInt | None = None
    """Number of blocks to add to each list of blocks."""

    widen: Annotated[float, Bounds(above=1.0)] | None = None
    """New number of hidden units, relative to the present one."""

    out: Annotated[str | None, Metavar("FOLDER")] = None
    """Folder to write, which must not exist."""

    deepen_at: Annotated[tuple[str, ...], Metavar("NAME")] = ()
    """Lists of blocks to deepen, such as model.layers; by default all."""

    widen_at: Annotated[tuple[str, ...], Metavar("NAME")] = ()
    """Modules to widen, such as 'model.layers.*.mlp'; by default everything that can be."""

    dry_run: bool = False
    """Print what would change and write nothing."""


def run_expand(args: Sequence[str]) -> int:
    """Expand the checkpoint and print what changed."""
    options = parse(ExpandOptions, args, command="expand")
    if options.deepen is None and options.widen is None:
        raise UsageError("nothing to do; give --deepen N, --widen X or both.")
    for name in ("deepen", "widen"):
        if getattr(options, f"{name}_at") and getattr(options, name) is None:
            raise UsageError(f"--{name}-at needs --{name}, which says by how much.")
    if options.dry_run == (options.out is not None):
        raise UsageError("give either --out, the folder to write, or --dry-run.")
    read_checkpoint(options.checkpoint)  # what is wrong is said before PyTorch is loaded
    if options.out is not None:
        require_writable(require_new(options.out))
    with command_progress("expanding") as progress:
        progress.show("loading PyTorch", 0.0)
        from esper.integrations.checkpoints import expand_checkpoint

        expansion = expand_checkpoint(
            options.checkpoint,
            options.out,
            deepen=options.deepen,
            widen=options.widen,
            deepen_at=options.deepen_at or None,
            widen_at=options.widen_at or None,
            on_stage=progress.show,
        )
    is_done = not options.dry_run
    parts = [change.describe(is_done=is_done) for change in expansion.changes]
    print(escape_controls("\n".join(parts)))
    for note in expansion.notes:
        print_wrapped(note)
    if options.out is not None:
        print_wrapped(
            f"Written to {options.out}, loaded again and compared. To train only what is new, see "
            "growth.json in it."
        )
    return 0
