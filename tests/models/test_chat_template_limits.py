"""What a hostile chat template can't do: take long, take memory, get out of the sandbox, leave a thread."""

import contextlib
import json
import subprocess
import sys
import threading
import time

import pytest

from models.chat import ChatMessage
from models.chat_template import ChatTemplate, Limits
from models.errors import UnsupportedTemplate

QUICK = Limits(seconds=0.4)
PATIENT = Limits(seconds=60)
TEXT = "{% set s = 'a' * 100000 %}"
ROUNDS = "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}"

SLOW = {
    "nested loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "loops that filter": "{% for i in range(100000) if i < 0 %}{% endfor %}" * 1000,
    "a block that fills": "{% set x %}{% for i in range(100000) %}{% for j in range(100000) %}a{% endfor %}"
    "{% endfor %}{% endset %}",
    "chained filters": "{{ range(100000) | map('string') | map('upper') | list | length }}" * 100,
    "nested calls": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 30
    + "a"
    + "{% endcall %}" * 30,
    "lists of lists": "{{ range(100000) | batch(1) | sum(start=[]) | length }}",
    "printing": "{{ range(100000) | list | pprint }}" * 100,
    "many lists": "{% set l = range(100000) | list %}" * 1000,
}

LARGE = {
    "a huge range": "{{ range(10 ** 9) }}",
    "multiplication": "{{ 'a' * 10 ** 9 }}",
    "multiplication from the left": "{% set n = 10 ** 9 %}{{ n * 'a' }}",
    "a multiplied list": "{% set n = 10 ** 9 %}{{ ([1] * n) | length }}",
    "a list of one large text": TEXT + "{% set l = [s] * 100000 %}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "rjust": "{{ 'a'.rjust(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "center, the method": "{{ 'a'.center(10 ** 9) }}",
    "center, the filter": "{{ 'a' | center(1000000000) }}",
    "center by name": "{{ 'a' | center(width=1000000000) }}",
    "indent": "{% set s = '\n' * 100000 %}{{ s | indent(100000) }}",
    "indent with a text": "{% set s = '\n' * 100000 %}{{ s | indent(s) }}",
    "wordwrap": TEXT + "{{ s | wordwrap(1, wrapstring=s) }}",
    "a percent width": "{{ '%1000000000d' % 1 }}",
    "a percent precision": "{{ '%.1000000000f' | format(1.0) }}",
    "a percent width among the values": "{{ '%*d' % (1000000000, 1) }}",
    "percent fields": TEXT + "{{ ('%(s)s' * 10000) % {'s': s} }}",
    "a format width": "{{ '{:>1000000000}'.format(1) }}",
    "a format width among the values": "{{ '{:>{}}'.format(1, 1000000000) }}",
    "format fields": TEXT + "{{ ('{0}' * 10000).format(s) }}",
    "format_map": TEXT + "{{ ('{s}' * 10000).format_map({'s': s}) }}",
    "doubling by ~": ROUNDS + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling by +": ROUNDS + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling by join": ROUNDS + "{% set ns.s = [ns.s, ns.s] | join(ns.s) %}{% endfor %}",
    "doubling by blocks": "{% set a %}aaaaaaaaaa{% endset %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 40,
    "doubling lists": ROUNDS + "{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "doubling tuples as keys": ROUNDS + "{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ {ns.s: 1} }}",
    "doubling dicts": ROUNDS + "{% set ns.s = dict(a=ns.s, b=ns.s) %}{% endfor %}{{ ns.s | tojson }}",
    "powers": "{% set n = 10 %}{{ n ** (n ** n) }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x ** 2 %}{% endfor %}",
    "rounding": "{{ 1.5 | round(1000000000, 'floor') }}",
    "replace, the method": TEXT + "{{ s.replace('a', s) }}",
    "replace, the filter": TEXT + "{{ s | replace('a', s) }}",
    "replace nothing": TEXT + "{{ s.replace('', s) }}",
    "join, the method": TEXT + "{{ s.join(s) }}",
    "join of an iterator": TEXT + "{{ range(100000) | map(attribute='x', default=s) | join }}",
    "translate": TEXT + "{{ s.translate({97: s}) }}",
    "expandtabs": "{% set s = '\t' * 100000 %}{{ s.expandtabs(100000) }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "sum of lists": "{{ range(100000) | map('string') | map('list') | list | sum(start=[]) }}",
    "many texts": "{% set n = 1000000 %}" + "".join(f"{{% set a{i} = 'x' * n %}}" for i in range(2000)),
    "many slices": "{% set s = 'x' * 1000000 %}" + "".join(f"{{% set a{i} = s[1:] %}}" for i in range(2000)),
    "characters": "{% set s = 'é' * 1000000 %}" + "".join(f"{{% set a{i} = s | list %}}" for i in range(9)),
    "words": "{% set s = 'x ' * 400000 %}" + "".join(f"{{% set a{i} = s.split() %}}" for i in range(9)),
    "bytes": "{{ 'a'.encode().ljust(1000000000) }}",
    "bytes of a number": "{{ (1).to_bytes(1000000000, 'big') }}",
    "filler": "{{ lipsum(n=1000000000) }}",
    "json indent": "{{ range(100000) | list | tojson(indent=100000) }}",
    "output": "{% for i in range(100000) %}0123456789ABCDEF{% endfor %}",
    "recursion": "{% macro m(x) %}{{ m(x + 'a' * 100000) }}{% endmacro %}{{ m('') }}",
    "recursion of a loop": "{% set l = [1] %}{% for i in l recursive %}{{ loop(l) }}{% endfor %}",
    "recursion of a block": "{% block a %}{{ self.a() }}{% endblock %}",
}

NO_TEMPLATES = {
    "nested parentheses": "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}",
    "nested lists": "{{ " + "[" * 9000 + "1" + "]" * 9000 + " }}",
    "nested conditions": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "nested loops": "{% for i in range(9) %}" * 30 + "x" + "{% endfor %}" * 30,
    "negations": "{{ " + "not " * 9000 + "1 }}",
    "a long source": "a" * 70_000,
    "many parts": "{{ a.b[1] }}" * 5000,
}

ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ [''] | map('attr', '__class__') | list }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}",
    "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__call__ }}",
    "{{ self.__init__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ lipsum.__globals__.os.popen('id') }}",
    "{{ (range(3) | map('string')).gi_frame }}",
    "{{ dict.mro() }}",
    "{% macro m() %}{% endmacro %}{{ m._func }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "{{ namespace(__init__=1) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{% include 'secrets.txt' %}",
    "{% import 'os' as os %}{{ os }}",
]


def outcome(source: str, limits: Limits) -> str:
    """How the template fails."""
    with pytest.raises(UnsupportedTemplate) as caught:
        ChatTemplate(source, limits=limits).render([ChatMessage("user", "Hello")])
    message = str(caught.value)
    assert "\n" not in message
    return message


# The stop may arrive inside a finalizer, which reports and swallows it; it is sent again until it arrives.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", SLOW)
def test_time_ends(name: str) -> None:
    before, threads = time.process_time(), threading.active_count()
    outcome(SLOW[name], QUICK)
    assert time.process_time() - before < QUICK.seconds + 1.5  # compilation has a limit of its own
    assert threading.active_count() == threads


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_never_made(name: str) -> None:
    message = outcome(LARGE[name], PATIENT)
    assert "longer than" not in message


@pytest.mark.parametrize("name", NO_TEMPLATES)
def test_what_can_not_be_compiled(name: str) -> None:
    assert "template" in outcome(NO_TEMPLATES[name], PATIENT)


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    outcome(source, PATIENT)


MEASURE = """
import json, resource, sys
from models.chat import ChatMessage
from models.chat_template import ChatTemplate, Limits
from models.errors import UnsupportedTemplate

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

ChatTemplate("{{ messages | tojson }}").render([ChatMessage("user", "Hello")])
start = peak()
for source in json.load(sys.stdin):
    try:
        ChatTemplate(source, limits=Limits(seconds=0.4)).render([ChatMessage("user", "Hello")])
    except UnsupportedTemplate:
        pass
print(peak() - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_memory_stays_bounded() -> None:
    sources = [*SLOW.values(), *LARGE.values(), *NO_TEMPLATES.values()]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], input=json.dumps(sources), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100 * 2**20


def test_work_on_a_thread_is_stopped_though_it_swallows_exceptions() -> None:
    from models.chat_template.limits import OutOfTime, within

    def stubborn() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.001)

    with pytest.raises(OutOfTime):
        within(0.02, stubborn)


def test_an_exception_of_the_work_is_the_callers() -> None:
    from models.chat_template.limits import within

    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)
    assert within(5, lambda: None) is None


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Limits(seconds=0)
