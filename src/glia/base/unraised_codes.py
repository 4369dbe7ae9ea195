"""Codes of AWS's compiler that nothing raises here, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UnraisedCode:
    """A code, what it means to AWS's compiler, and why no program has this error here."""

    code: str
    meaning: str
    cause: str
    fix: str
    example: str
    reason: str

    def explain(self) -> str:
        """The text that `glia explain` prints."""
        return (
            f"{self.code}: {self.meaning}\n\nCause: {self.cause}\nFix: {self.fix}\n"
            f"Example: {self.example}\nHere: {self.reason}"
        )


UNRAISED = {
    each.code: each
    for each in (
        UnraisedCode(
            "NCC_EBIR023",
            "The intermediate size of AWS's own MLP kernel is beyond 4096.",
            "The model is compiled into a kernel for multilayer perceptrons that has this limit.",
            "Shard the intermediate dimension over more cores.",
            "an MLP with 8192 hidden units, for which AWS's compiler chose its kernel",
            "it cannot occur: glia puts no kernel of its own in the place of a model's operations.",
        ),
        UnraisedCode(
            "NCC_EVRF052",
            "A value is float8_e4m3 on hardware newer than trn3.",
            "Later cores have float8_e4m3fn only.",
            "Use float8_e4m3fn.",
            "a module with a parameter f8e4m3[8] for a target after trn3",
            "it cannot occur: no target is newer than trn3, which has both formats.",
        ),
        UnraisedCode(
            "NCC_EVRF059",
            "The file of a kernel that a custom call names does not exist.",
            "The model was moved without the artifacts of its kernels.",
            "Copy the artifacts beside the model, or trace it again.",
            "a model whose AwsNeuronCustomNativeKernel call names a deleted file",
            "it cannot occur: a kernel travels inside its custom call, in no file of its own.",
        ),
    )
}
