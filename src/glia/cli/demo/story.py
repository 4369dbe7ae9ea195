"""`glia demo`: a model is trained, compiled, run and explained, and every promise is checked."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import jax
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from glia.cli.demo import digits
from glia.profile.report import Profile
from glia.runtime.model import Model, load

STEPS = 50
LEAST_ACCURACY = 0.97
MOST_LOSS_DIFFERENCE = 1e-3
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Story:
    """What the demo has said and found so far; files go to `folder`."""

    folder: Path
    target: str
    console: Console
    broken: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print one indented line."""
        self.console.print(f"   {text}", highlight=False, soft_wrap=True)

    def promise(self, is_kept: bool, text: str) -> None:
        """Print whether a promise holds, and remember when it does not."""
        mark = "[green]✓[/]" if is_kept else "[red]✗[/]"
        self.console.print(f" {mark} {text}", highlight=False, soft_wrap=True)
        if not is_kept:
            self.broken.append(text)

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """Print a title, and the time the chapter took."""
        self.console.print(f"\n[bold]{title}[/]", highlight=False)
        started = time.perf_counter()
        yield
        self.console.print(f"   [dim]{time.perf_counter() - started:.1f} s[/]", highlight=False)

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar on terminals; the value takes the number of steps done."""
        hidden = not self.console.is_terminal
        with Progress(console=self.console, transient=True, disable=hidden) as progress:
            task = progress.add_task(f"   {text}", total=total)
            yield lambda done: progress.update(task, completed=done)


def tell(folder: Path, target: str) -> int:
    """Run the demo; 0 when every promise held, 1 when not, and a failed command's exit status.

    Raises CompileError when a model cannot be loaded or run.
    """
    started = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    story = Story(folder, target, Console())
    try:
        _tell(story)
    except subprocess.CalledProcessError as error:
        return error.returncode  # the command has said why
    story.console.print(f"\n{time.perf_counter() - started:.0f} s in all.", highlight=False)
    for text in story.broken:
        story.console.print(f"[red]did not hold:[/] {text}", highlight=False)
    return 1 if story.broken else 0


def _tell(story: Story) -> None:
    with story.chapter("1  A convolutional network learns handwritten digits, in JAX on this host"):
        data, parameters = _train(story)
    with story.chapter(f"2  Its forward pass is compiled for {story.target}"):
        (story.folder / "digits.hlo.pb").write_bytes(digits.forward_hlo(parameters))
        _compile(story, "digits")
    with story.chapter("3  The simulated device classifies the held-out fifth"):
        profile = _classify(story, data, parameters)
    with story.chapter(f"4  The training step is compiled, and the device takes {STEPS} steps"):
        _train_on_device(story, data)
    with story.chapter("5  Where the time went"):
        _save_profile(story, profile)


def _train(story: Story) -> tuple[digits.Digits, digits.Parameters]:
    data = digits.load()
    story.say(f"{len(data.train_labels)} images to train on, {len(data.test_labels)} held out")
    with story.steps("training", digits.training_steps(data)) as done:
        parameters = digits.train(data, done)
    return data, parameters


def _compile(story: Story, name: str, *options: str) -> Path:
    """Run neuronx-cc on NAME.hlo.pb in the demo's folder; the path of the NEFF."""
    output = story.folder / f"{name}.neff"
    arguments = ["compile", str(story.folder / f"{name}.hlo.pb"), "--framework", "XLA"]
    arguments += ["--target", story.target, *options, "--output", str(output)]
    arguments += ["--logfile", str(story.folder / "log-neuron-cc.txt")]
    _command(story, "neuronx-cc", "glia.cli.neuronx_cc", arguments)
    story.say(f"{output}: {output.stat().st_size:,} bytes")
    return output


def _command(story: Story, name: str, module: str, arguments: list[str]) -> None:
    """Run a console command of this installation (or its module, from a source tree)."""
    script = which(name, path=sysconfig.get_path("scripts"))
    story.say(f"[cyan]$ {name} {' '.join(arguments)}[/]")
    command = [script] if script else [sys.executable, "-m", module]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with story.console.status(f"{name} {arguments[0]}"):
        subprocess.run(
            [*command, *arguments], check=True, stdin=subprocess.DEVNULL, env=environment
        )


def _classify(story: Story, data: digits.Digits, parameters: digits.Parameters) -> Profile:
    model = load(story.folder / "digits.neff")
    batches = data.test_images.reshape(-1, digits.EVALUATED, *data.test_images.shape[1:])
    started = time.perf_counter()
    with story.steps("classifying", len(batches)) as done:
        outputs = []
        for number, images in enumerate(batches, start=1):
            outputs += model(images)
            done(number)
    seconds = time.perf_counter() - started
    device = np.concatenate(outputs).argmax(axis=1)
    host_scores = np.asarray(jax.jit(digits.scores)(parameters, data.test_images))
    host = host_scores.argmax(axis=1)
    np.save(story.folder / "images.npy", batches[0])
    np.savez(story.folder / "scores.npz", **{model.outputs[0].name: host_scores[: len(batches[0])]})
    _compare(story, data.test_labels, device, host)
    profile = model.profile()
    story.say(f"executed on this host in {seconds / len(batches):.2f} s a batch; on the device:")
    _print_profile(story, profile)
    return profile


def _compare(story: Story, labels: np.ndarray, device: np.ndarray, host: np.ndarray) -> None:
    on_device, on_host = (device == labels).mean(), (host == labels).mean()
    same, count = int((device == host).sum()), len(labels)
    story.promise(on_host >= LEAST_ACCURACY, f"accuracy in JAX        {on_host:.2%}")
    story.promise(on_device >= LEAST_ACCURACY, f"accuracy on the device {on_device:.2%}")
    story.promise(same == count, f"equal predictions      {same} of {count}")


def _print_profile(story: Story, profile: Profile) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 3))
    table.add_column(no_wrap=True)
    table.add_row("latency", f"{profile.latency_us:,.1f} us for a batch of {digits.EVALUATED}")
    for name, engine in profile.engines.items():
        table.add_row(f"{name} engine", f"{engine.utilization:6.1%} busy")
    table.add_row("HBM traffic", f"{profile.hbm_bytes:,} bytes, {profile.hbm_gbps:.1f} GB/s")
    table.add_row("peak reached", f"{profile.mfu:.2%} of the bf16 matrix peak")
    for number, text in enumerate(profile.not_modelled):
        table.add_row("" if number else "not modelled", text)
    story.console.print(table, highlight=False)


def _train_on_device(story: Story, data: digits.Digits) -> None:
    (story.folder / "train_step.hlo.pb").write_bytes(digits.train_step_hlo())
    model = load(_compile(story, "train_step", "--auto-cast", "none"))
    on_device, on_host = [], []
    host_step = jax.jit(digits.train_step)
    host = device = digits.initial_state()
    with story.steps("training on the device", STEPS) as done:
        for number, batch in zip(range(1, STEPS + 1), digits.batches(data), strict=False):
            host, host_loss = host_step(host, *batch)
            device, device_loss = step_on(model, device, *batch)
            on_host.append(float(host_loss))
            on_device.append(float(device_loss))
            done(number)
    _print_losses(story, np.array(on_device), np.array(on_host))
    story.say(f"latency of a step on {story.target}: {model.profile().latency_us:,.1f} us")


def step_on(
    model: Model, state: digits.State, images: np.ndarray, labels: np.ndarray
) -> tuple[digits.State, np.ndarray]:
    """A training step on a device, by a model compiled from `digits.train_step_hlo`."""
    arguments = (state, images, labels)
    outputs = model(*(np.asarray(leaf) for leaf in jax.tree.leaves(arguments)))
    return jax.tree.unflatten(jax.tree.structure((state, 0)), outputs)


def _print_losses(story: Story, device: np.ndarray, host: np.ndarray) -> None:
    difference = np.abs(device - host) / np.abs(host)
    table = Table(box=None, padding=(0, 2, 0, 3))
    for heading in ("step", "loss on the device", "loss in JAX", "relative difference"):
        table.add_column(heading, justify="right")
    for row in [0, *range(9, len(host), 10)]:
        values = (f"{device[row]:.6f}", f"{host[row]:.6f}", f"{difference[row]:.1e}")
        table.add_row(str(row + 1), *values)
    story.console.print(table, highlight=False)
    story.say(f"device {sparkline(device)}")
    story.say(f"JAX    {sparkline(host)}")
    worst = difference.max()
    text = f"largest relative difference of the losses {worst:.1e} (promised: at most 1e-3)"
    story.promise(bool(worst <= MOST_LOSS_DIFFERENCE), text)


def sparkline(values: np.ndarray) -> str:
    """One block character for each value, from 0 to the largest; '?' for what is not finite."""
    most = max((v for v in values if np.isfinite(v)), default=1.0) or 1.0
    last = len(BARS) - 1
    return "".join(
        BARS[min(last, max(0, round(v / most * last)))] if np.isfinite(v) else "?" for v in values
    )


def _save_profile(story: Story, profile: Profile) -> None:
    trace, page, picture = (
        story.folder / f"digits.{ending}" for ending in ("perfetto.json", "html", "svg")
    )
    profile.save_perfetto(trace)
    profile.save_html(page)
    profile.save_svg(picture)
    story.say(f"{trace}  open it at https://ui.perfetto.dev")
    story.say(f"{page}  timeline, memory and roofline; open it in a browser")
    story.say(f"{picture}  the timeline alone, as a picture")
    name = profile.program.inputs[0].name
    story.say("again, and checked against JAX within what bf16 allows:")
    neff, images = story.folder / "digits.neff", story.folder / "images.npy"
    arguments = ["run", str(neff), "--input", f"{name}={images}", "--check"]
    arguments += [str(story.folder / "scores.npz"), "--rtol", "0.02", "--atol", "0.2"]
    _command(story, "glia", "glia.cli.glia", arguments)
