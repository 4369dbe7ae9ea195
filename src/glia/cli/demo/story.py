"""`glia demo`: train, compile, run and profile a model, and check it against JAX."""

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
MIN_ACCURACY = 0.97
MAX_LOSS_DIFFERENCE = 1e-3
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class DemoRun:
    """The console and the failed checks of a demo; output files are in `folder`."""

    folder: Path
    target: str
    console: Console
    failures: list[str] = field(default_factory=list)

    def print(self, text: str) -> None:
        """Print one indented line."""
        self.console.print(f"   {text}", highlight=False, soft_wrap=True)

    def check(self, passed: bool, text: str) -> None:
        """Print whether a check passed, and record a failure."""
        mark = "[green]✓[/]" if passed else "[red]✗[/]"
        self.console.print(f" {mark} {text}", highlight=False, soft_wrap=True)
        if not passed:
            self.failures.append(text)

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """Print a title, and afterwards the elapsed time."""
        self.console.print(f"\n[bold]{title}[/]", highlight=False)
        started = time.perf_counter()
        yield
        self.console.print(f"   [dim]{time.perf_counter() - started:.1f} s[/]", highlight=False)

    @contextmanager
    def steps(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar on terminals; yields a function of the number of steps done."""
        hidden = not self.console.is_terminal
        with Progress(console=self.console, transient=True, disable=hidden) as progress:
            task = progress.add_task(f"   {text}", total=total)
            yield lambda done: progress.update(task, completed=done)


def run_demo(folder: Path, target: str) -> int:
    """Run the demo; returns 0, 1 when a check failed, or a failed command's exit status.

    Raises CompileError when a model cannot be loaded or run.
    """
    started = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    demo = DemoRun(folder, target, Console())
    try:
        _run_chapters(demo)
    except subprocess.CalledProcessError as error:
        return error.returncode  # the command has printed the reason
    demo.console.print(f"\n{time.perf_counter() - started:.0f} s in all.", highlight=False)
    for text in demo.failures:
        demo.console.print(f"[red]failed:[/] {text}", highlight=False)
    return 1 if demo.failures else 0


def _run_chapters(demo: DemoRun) -> None:
    with demo.chapter("1  Train a convolutional network on digits, in JAX on this host"):
        data, parameters = _train(demo)
    with demo.chapter(f"2  Compile the forward pass for {demo.target}"):
        (demo.folder / "digits.hlo.pb").write_bytes(digits.forward_hlo(parameters))
        _compile(demo, "digits")
    with demo.chapter("3  Classify the held-out fifth on the simulated device"):
        profile = _classify(demo, data, parameters)
    with demo.chapter(f"4  Compile the training step and run {STEPS} steps on the device"):
        _train_on_device(demo, data)
    with demo.chapter("5  Profile of the forward pass"):
        _save_profile(demo, profile)


def _train(demo: DemoRun) -> tuple[digits.Digits, digits.Parameters]:
    data = digits.load()
    demo.print(f"{len(data.train_labels)} images to train on, {len(data.test_labels)} held out")
    with demo.steps("training", digits.training_steps(data)) as done:
        parameters = digits.train(data, done)
    return data, parameters


def _compile(demo: DemoRun, name: str, *options: str) -> Path:
    """Run neuronx-cc on NAME.hlo.pb in the demo's folder; the path of the NEFF."""
    output = demo.folder / f"{name}.neff"
    arguments = ["compile", str(demo.folder / f"{name}.hlo.pb"), "--framework", "XLA"]
    arguments += ["--target", demo.target, *options, "--output", str(output)]
    arguments += ["--logfile", str(demo.folder / "log-neuron-cc.txt")]
    _command(demo, "neuronx-cc", "glia.cli.neuronx_cc", arguments)
    demo.print(f"{output}: {output.stat().st_size:,} bytes")
    return output


def _command(demo: DemoRun, name: str, module: str, arguments: list[str]) -> None:
    """Run a console command of this installation (or its module, from a source tree)."""
    script = which(name, path=sysconfig.get_path("scripts"))
    demo.print(f"[cyan]$ {name} {' '.join(arguments)}[/]")
    command = [script] if script else [sys.executable, "-m", module]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with demo.console.status(f"{name} {arguments[0]}"):
        subprocess.run(
            [*command, *arguments], check=True, stdin=subprocess.DEVNULL, env=environment
        )


def _classify(demo: DemoRun, data: digits.Digits, parameters: digits.Parameters) -> Profile:
    model = load(demo.folder / "digits.neff")
    batches = data.test_images.reshape(-1, digits.EVALUATED, *data.test_images.shape[1:])
    started = time.perf_counter()
    with demo.steps("classifying", len(batches)) as done:
        outputs = []
        for number, images in enumerate(batches, start=1):
            outputs += model(images)
            done(number)
    seconds = time.perf_counter() - started
    device = np.concatenate(outputs).argmax(axis=1)
    host_scores = np.asarray(jax.jit(digits.scores)(parameters, data.test_images))
    host = host_scores.argmax(axis=1)
    np.save(demo.folder / "images.npy", batches[0])
    references = {model.outputs[0].name: host_scores[: len(batches[0])]}
    np.savez(demo.folder / "scores.npz", allow_pickle=True, **references)
    _compare(demo, data.test_labels, device, host)
    profile = model.profile()
    demo.print(f"executed on this host in {seconds / len(batches):.2f} s a batch; on the device:")
    _print_profile(demo, profile)
    return profile


def _compare(demo: DemoRun, labels: np.ndarray, device: np.ndarray, host: np.ndarray) -> None:
    on_device, on_host = (device == labels).mean(), (host == labels).mean()
    same, count = int((device == host).sum()), len(labels)
    demo.check(on_host >= MIN_ACCURACY, f"accuracy in JAX        {on_host:.2%}")
    demo.check(on_device >= MIN_ACCURACY, f"accuracy on the device {on_device:.2%}")
    demo.check(same == count, f"equal predictions      {same} of {count}")


def _print_profile(demo: DemoRun, profile: Profile) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 3))
    table.add_column(no_wrap=True)
    table.add_row("latency", f"{profile.latency_us:,.1f} us for a batch of {digits.EVALUATED}")
    for name, engine in profile.engines.items():
        table.add_row(f"{name} engine", f"{engine.utilization:6.1%} busy")
    table.add_row("HBM traffic", f"{profile.hbm_bytes:,} bytes, {profile.hbm_gbps:.1f} GB/s")
    table.add_row("MFU", f"{profile.mfu:.2%} of the bf16 matrix peak")
    for number, text in enumerate(profile.not_modelled):
        table.add_row("" if number else "not modelled", text)
    demo.console.print(table, highlight=False)


def _train_on_device(demo: DemoRun, data: digits.Digits) -> None:
    (demo.folder / "train_step.hlo.pb").write_bytes(digits.train_step_hlo())
    model = load(_compile(demo, "train_step", "--auto-cast", "none"))
    on_device, on_host = [], []
    host_step = jax.jit(digits.train_step)
    host = device = digits.initial_state()
    with demo.steps("training on the device", STEPS) as done:
        for number, batch in zip(range(1, STEPS + 1), digits.batches(data), strict=False):
            host, host_loss = host_step(host, *batch)
            device, device_loss = step_on(model, device, *batch)
            on_host.append(float(host_loss))
            on_device.append(float(device_loss))
            done(number)
    _print_losses(demo, np.array(on_device), np.array(on_host))
    demo.print(f"latency of a step on {demo.target}: {model.profile().latency_us:,.1f} us")


def step_on(
    model: Model, state: digits.TrainingState, images: np.ndarray, labels: np.ndarray
) -> tuple[digits.TrainingState, np.ndarray]:
    """A training step on a device, by a model compiled from `digits.train_step_hlo`."""
    arguments = (state, images, labels)
    outputs = model(*(np.asarray(leaf) for leaf in jax.tree.leaves(arguments)))
    after: tuple[digits.TrainingState, np.ndarray]
    after = jax.tree.unflatten(jax.tree.structure((state, 0)), outputs)
    return after


def _print_losses(demo: DemoRun, device: np.ndarray, host: np.ndarray) -> None:
    difference = np.abs(device - host) / np.abs(host)
    table = Table(box=None, padding=(0, 2, 0, 3))
    for heading in ("step", "loss on the device", "loss in JAX", "relative difference"):
        table.add_column(heading, justify="right")
    for row in [0, *range(9, len(host), 10)]:
        values = (f"{device[row]:.6f}", f"{host[row]:.6f}", f"{difference[row]:.1e}")
        table.add_row(str(row + 1), *values)
    demo.console.print(table, highlight=False)
    demo.print(f"device {sparkline(device)}")
    demo.print(f"JAX    {sparkline(host)}")
    worst = difference.max()
    text = f"largest relative difference of the losses {worst:.1e} (limit 1e-3)"
    demo.check(bool(worst <= MAX_LOSS_DIFFERENCE), text)


def sparkline(values: np.ndarray) -> str:
    """One block character for each value, from 0 to the maximum; '?' where not finite."""
    most = max((v for v in values if np.isfinite(v)), default=1.0) or 1.0
    last = len(BARS) - 1
    return "".join(
        BARS[min(last, max(0, round(v / most * last)))] if np.isfinite(v) else "?" for v in values
    )


def _save_profile(demo: DemoRun, profile: Profile) -> None:
    trace, page, picture = (
        demo.folder / f"digits.{ending}" for ending in ("perfetto.json", "html", "svg")
    )
    profile.save_perfetto(trace)
    profile.save_html(page)
    profile.save_svg(picture)
    demo.print(f"{trace}  open it at https://ui.perfetto.dev")
    demo.print(f"{page}  timeline, memory and roofline, for a browser")
    demo.print(f"{picture}  the timeline as a picture")
    name = profile.program.inputs[0].name
    demo.print("the same NEFF on the command line, checked against JAX within bf16 tolerance:")
    neff, images = demo.folder / "digits.neff", demo.folder / "images.npy"
    arguments = ["run", str(neff), "--input", f"{name}={images}", "--check"]
    arguments += [str(demo.folder / "scores.npz"), "--rtol", "0.02", "--atol", "0.2"]
    _command(demo, "glia", "glia.cli.glia", arguments)
