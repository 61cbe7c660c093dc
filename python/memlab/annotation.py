"""``memlab.annotate``: named ranges, shown in traces, the dashboard, reports and exports beside layers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Any, TypeVar, cast, final

from memlab import _native

Function = TypeVar("Function", bound=Callable[..., Any])


@final
class annotate:
    """Names a range of a program: its allocations are counted under that name, beside lines and layers.

    Use it as a context manager or a decorator. Ranges nest (``step/forward``), and each thread has its own ranges. The same
    name at the same place is the same range, however often it is entered. Allocations of backward count in the range of the
    forward operation, unless ``backward()`` was called in another range. NVTX ranges (``torch.cuda.nvtx.range``) are
    recorded in the same way, so programs that use them need no others.

    Without memlab in the process it does nothing, in less than a microsecond.

    >>> import memlab
    >>> with memlab.annotate("load"):
    ...     weights = [0.0] * 4

    A decorated function is in the range while it runs. A generator or coroutine is in the range only while its code runs,
    not while it waits:

    >>> @memlab.annotate("read")
    ... def batches():
    ...     yield 1
    ...     yield 2
    >>> list(batches())
    [1, 2]

    Do not ``await`` or ``yield`` inside ``with memlab.annotate(...)``: the thread stays in the range while other code runs.
    Decorate the function instead.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'memlab.annotate takes a name, as in memlab.annotate("forward"), not {type(name).__name__}')
        self.name = name

    def __enter__(self) -> annotate:
        _native.range_push(self.name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _native.range_pop()

    def __call__(self, function: Function) -> Function:
        """Decorates a function of any kind."""
        if not callable(function):
            raise TypeError(f"memlab.annotate({self.name!r}) decorates functions, not {type(function).__name__}")
        return cast("Function", functools.wraps(function)(self._around(function)))

    def __repr__(self) -> str:
        return f"memlab.annotate({self.name!r})"

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(function):

            async def items(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
                generator = function(*args, **kwargs)
                step = generator.__anext__()
                while True:
                    try:
                        item = await _Stepwise(self, step)
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await _Stepwise(self, generator.aclose())
                        raise
                    except BaseException as error:
                        step = generator.athrow(error)
                    else:
                        step = generator.asend(sent)

            return items
        if inspect.iscoroutinefunction(function):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return await _Stepwise(self, function(*args, **kwargs))

            return awaited
        if inspect.isgeneratorfunction(function):

            def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                return (yield from _stepwise(self, function(*args, **kwargs)))

            return steps

        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return called


class _Stepwise:
    """An awaitable that is in the range only while it runs."""

    __slots__ = ("awaitable", "range")

    def __init__(self, range: annotate, awaitable: Any) -> None:
        self.range, self.awaitable = range, awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        return _stepwise(self.range, self.awaitable.__await__())


def _stepwise(range: annotate, steps: Any) -> Generator[Any, Any, Any]:
    """Runs a generator, which is in the range only while its code runs. (Iterators of awaitables may lack some methods.)"""
    advance: Callable[[], Any] = functools.partial(next, steps)
    while True:
        with range:
            try:
                item = advance()
            except StopIteration as end:
                return end.value
        try:
            sent = yield item
        except GeneratorExit:
            with range:
                getattr(steps, "close", lambda: None)()
            raise
        except BaseException as error:
            if not hasattr(steps, "throw"):
                raise
            advance = functools.partial(steps.throw, error)
        else:
            advance = functools.partial(next, steps) if sent is None else functools.partial(steps.send, sent)
