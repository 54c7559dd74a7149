"""Prints the options of an engine's server, by its own parser: ``python
server_options.py ENGINE``.

Runs in the environment of a release. A line is ``flag``, ``value`` or ``values`` (how
many words the option takes), and its names. tests/unit/server_options holds what it
printed."""

import argparse
import importlib
import sys


def of_vllm() -> argparse.ArgumentParser:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        arguments = importlib.import_module("vllm.entrypoints.openai.cli_args")
    except ModuleNotFoundError:  # since 0.33
        arguments = importlib.import_module("vllm.entrypoints.common.cli_args")
    made: argparse.ArgumentParser = arguments.make_arg_parser(FlexibleArgumentParser())
    return made


def of_sglang() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    made = argparse.ArgumentParser()
    ServerArgs.add_cli_args(made)
    return made


def of_lmdeploy() -> argparse.ArgumentParser:
    from lmdeploy.cli.serve import SubCliServe

    SubCliServe.add_parser_api_server()
    made: argparse.ArgumentParser = SubCliServe.subparsers.choices["api_server"]
    return made


def lines(parser: argparse.ArgumentParser) -> list[str]:
    found = []
    for action in parser._actions:
        if not action.option_strings:
            continue
        takes = "value"
        if action.nargs == 0:
            takes = "flag"
        elif action.nargs in ("+", "*"):
            takes = "values"
        found.append(" ".join([takes, *sorted(action.option_strings)]))
    return sorted(found, key=lambda line: line.split()[1:])


if __name__ == "__main__":
    parsers = {"vllm": of_vllm, "sglang": of_sglang, "lmdeploy": of_lmdeploy}
    found = lines(parsers[sys.argv[1]]())  # which may log something
    print("\n".join(["OPTIONS", *found]))
