"""Takes the option GONE_OPTION out of every parser of a process, as a release that
dropped it."""

import argparse
import os

_add = argparse.ArgumentParser.add_argument


def _without(parser, *names, **settings):
    if os.environ.get("GONE_OPTION") not in names:
        return _add(parser, *names, **settings)
    action = _add(parser, *names, **settings)
    parser._actions.remove(action)
    for group in parser._action_groups:
        if action in group._group_actions:
            group._group_actions.remove(action)
    for name in names:
        del parser._option_string_actions[name]
    parser.set_defaults(**{action.dest: action.default})
    return action


argparse.ArgumentParser.add_argument = _without
