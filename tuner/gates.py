"""Why a function of torch's said no, in the words of its own source.

Nothing of its rules is written here: the condition around the `return` that it left by
is looked up in its source, and its parts are evaluated in the very frame.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, NoneType
from typing import Any

# Values that are worth showing beside a condition.
_TOLD = (int, str, list, tuple, NoneType)
_LONGEST_VALUE = 60


class Gate:
    """A function that declines by returning False, None or nothing in a list."""

    def __init__(self, function: Callable[..., Any]) -> None:
        plain: Any = inspect.unwrap(function)
        lines, self._first_line = inspect.getsourcelines(plain)
        self._text = textwrap.dedent("".join(lines))
        self._tree = ast.parse(self._text)
        self.name = str(plain.__name__)
        self.code: CodeType = plain.__code__

    def words(self, frame: FrameType) -> str:
        """Return what decided, where the function has just left `frame`.

        Empty where no condition stands around its `return`: what it called decided.
        """
        parts = [
            part
            for test, value in self._conditions(frame.f_lineno - self._first_line + 1)
            for part in list(self._decided(test, value, frame)) or [self._segment(test)]
        ]
        return f"{self.name}: {', '.join(parts)}" if parts else ""

    def _conditions(self, line: int) -> list[tuple[ast.expr, bool]]:
        """Return the conditions around the `return` on a line, and their values there.

        The outer ones are first; of an `else` only the last condition is told.
        """
        found: list[tuple[ast.expr, bool]] = []
        for node in ast.walk(self._tree):
            if isinstance(node, ast.If):
                if any(_within(inner, line) for inner in node.body):
                    found.append((node.test, True))
                elif any(_returns_at(inner, line) for inner in node.orelse):
                    found.append((node.test, False))
        if found:
            return found
        for node in ast.walk(self._tree):
            if _returns_at(node, line) and isinstance(node, ast.Return):
                is_rule = isinstance(node.value, ast.BoolOp)
                return [(node.value, False)] if node.value and is_rule else []
        return []

    def _decided(self, test: ast.expr, value: bool, frame: FrameType) -> Iterator[str]:
        """Yield the parts of a condition that made it `value`."""
        test = self._assigned(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield from self._decided(test.operand, not value, frame)
        elif isinstance(test, ast.BoolOp):
            # One part makes an `or` true and an `and` false, all make the contrary.
            for part in test.values:
                known = _value(part, frame)
                if known is None:
                    break  # guarded by a part before it
                if known is value:
                    yield from self._decided(part, value, frame)
        else:
            said = self._segment(test) if value else f"not {self._segment(test)}"
            yield said + _values(test, frame)

    def _assigned(self, test: ast.expr) -> ast.expr:
        """Return the condition that a name stands for, where it is one."""
        if not isinstance(test, ast.Name):
            return test
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.BoolOp):
                (target, *_) = node.targets
                if isinstance(target, ast.Name) and target.id == test.id:
                    return node.value
        return test

    def _segment(self, node: ast.expr) -> str:
        text = " ".join((ast.get_source_segment(self._text, node) or "").split())
        # As it would stand on one line.
        return text.replace("( ", "(").replace(" )", ")")


def _within(node: ast.AST, line: int) -> bool:
    return any(_returns_at(inner, line) for inner in ast.walk(node))


def _returns_at(node: ast.AST, line: int) -> bool:
    if not isinstance(node, ast.Return):
        return False
    return node.lineno <= line <= (node.end_lineno or line)


def _value(part: ast.expr, frame: FrameType) -> bool | None:
    """Return a part's truth in the frame that was left; None where it cannot be."""
    code = compile(ast.Expression(part), "<gate>", "eval")
    try:
        # One mapping: generator expressions do not see the locals of an eval.
        return bool(eval(code, {**frame.f_globals, **frame.f_locals}))
    except Exception:  # whatever torch raises where an earlier part should have held
        return None


def _values(part: ast.expr, frame: FrameType) -> str:
    names = dict.fromkeys(n.id for n in ast.walk(part) if isinstance(n, ast.Name))
    told = {
        name: repr(value)
        for name in names
        if isinstance(value := frame.f_locals.get(name, frame), _TOLD)
    }
    shown = [f"{k}={v}" for k, v in told.items() if len(v) <= _LONGEST_VALUE]
    return f" [{', '.join(shown)}]" if shown else ""
