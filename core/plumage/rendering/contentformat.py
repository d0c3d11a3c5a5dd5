"""Does a template want a message's content as one string, or as OpenAI's list of parts? vLLM asks the same question.

The rule is vLLM's (`--chat-template-content-format auto`): a template that loops over a message's content wants parts.
It is read off the syntax tree, scopes ignored, so it can be wrong. Then it must be wrong in the same way, because the
text that the engine renders depends on it.
"""

from __future__ import annotations

from typing import Literal

from jinja2 import nodes

__all__ = ["ContentFormat", "detect_content_format"]

ContentFormat = Literal["string", "openai"]


def detect_content_format(tree: nodes.Template) -> ContentFormat:
    """ "openai" if some loop runs over the content of a message."""
    messages = _message_names(tree)
    in_macros = _macro_loops(tree, messages)
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name, "content") for name in messages):
            return "openai"
        if isinstance(loop.iter, nodes.Name):
            bound = in_macros.get(id(loop))
            if loop.iter.name in bound if bound is not None else loop.iter.name == "content":
                return "openai"
    return "string"


def _message_names(tree: nodes.Template) -> set[str]:
    """Targets of loops over `messages` or over a name assigned from it."""
    lists = {"messages"}
    assignments = [(_name(node.target), node.node) for node in tree.find_all(nodes.Assign)]
    growing = True
    while growing:
        found = {target for target, value in assignments if any(_reads(value, name) for name in lists)}
        growing = not found <= lists
        lists |= found
    return {_name(loop.target) for loop in tree.find_all(nodes.For) if any(_reads(loop.iter, name) for name in lists)}


def _name(target: nodes.Node) -> str:
    return target.name if isinstance(target, nodes.Name) else ""


def _macro_loops(tree: nodes.Template, messages: set[str]) -> dict[int, set[str]]:
    """Returns, for each loop inside a macro, the macro's parameters that some call gives a message's content."""
    loops: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        bound = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            loops[id(loop)] = bound
    return loops


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    parameters = [argument.name for argument in macro.args]
    bound = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(parameters, call.args, strict=False), *((word.key, word.value) for word in call.kwargs)]
        bound |= {key for key, value in given if any(_reads(value, name, "content") for name in messages)}
    return bound & set(parameters)


def _reads(node: nodes.Node | None, name: str, field: str | None = None) -> bool:
    """Whether `node` is the variable `name`, or its `field`, through any filters, tests and slices."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, field)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, field)
    if field is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getattr):
        return node.attr == field and _reads_exactly(node.node, name)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == field and _reads_exactly(node.node, name)
    return False


def _reads_exactly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
