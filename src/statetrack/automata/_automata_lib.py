"""The one place that talks to automata-lib: regular expressions and its DFA objects.

Everything here returns plain tables, so that nothing else depends on automata-lib. What it absorbs:
partial automata are completed with a sink, the alphabet is always passed (the parser would read
quantifier digits as letters), and state names, which depend on the hash seed, never get out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from statetrack._extras import needs
from statetrack.automata._subsets import subset_table
from statetrack.automata.limits import MAX_REGEX, too_large

OPERATORS = frozenset("*|()?&+.^{}[]\\ \t\n\r\f\v")
# automata-lib has no letters that are operators: characters for private use stand for them
_STAND_INS = {ord(letter): chr(0xE000 + i) for i, letter in enumerate(sorted(OPERATORS))}
_BACK = {ord(mark): chr(letter) for letter, mark in _STAND_INS.items()}


def regex_table(regex: str, alphabet: Sequence[str]) -> tuple[list[list[int]], list[bool]]:
    """The complete table `delta[state][letter]` (start 0) of a regular expression, and who accepts.

    Letters are columns in the order of `alphabet`. The table is deterministic, not minimal. A
    backslash before an operator or a blank makes it a letter.

    >>> regex_table("a", "ab")
    ([[1, 2], [2, 2], [2, 2]], [False, True, False])
    >>> regex_table(r"\\.", ".")[1]
    [False, True, False]
    """
    _check_letters(alphabet)
    given, alphabet = regex, [letter.translate(_STAND_INS) for letter in alphabet]
    regex = _with_stand_ins(regex)
    _check_size(regex)
    nothing = re.search(r"\{(0+|0*,0+)\}", regex)
    if nothing:  # automata-lib takes it for at most one
        raise ValueError(
            f"regex {given!r} repeats something no times, {nothing[0]}: write () in its place"
        )
    with needs("a regular expression", "automata-lib", "automata"):
        from automata.base.exceptions import AutomatonException, RegexException
        from automata.fa.nfa import NFA
    try:
        nfa = NFA.from_regex(regex, input_symbols=set(alphabet))
    except (RegexException, AutomatonException, ValueError, RecursionError) as error:
        raise ValueError(_regex_message(given, regex, alphabet, error)) from error
    outside = sorted(set(nfa.input_symbols) - set(alphabet))
    if outside:
        raise ValueError(
            f"regex {given!r} uses {outside[0].translate(_BACK)!r}, which is not in the alphabet "
            f"{''.join(alphabet).translate(_BACK)!r}; add it to the alphabet"
        )
    places = {state: i for i, state in enumerate(nfa.states)}
    rows = [nfa.transitions.get(state, {}) for state in places]
    return subset_table(
        [[[places[end] for end in row.get(letter, ())] for letter in alphabet] for row in rows],
        [[places[end] for end in row.get("", ())] for row in rows],
        [places[nfa.initial_state]],
        [places[state] for state in nfa.final_states],
        f"regex {given[:40]!r}",
    )


def _with_stand_ins(regex: str) -> str:
    """Operators that are letters: those behind a backslash, and all in a class but a first ^."""
    escaped = re.sub(
        r"\\(.)",
        lambda found: found[1].translate(_STAND_INS) if found[1] in OPERATORS else found[0],
        regex,
        flags=re.DOTALL,
    )
    return re.sub(
        r"(?<=\[)(\^?)([^\]\\]*)(?=\])",
        lambda found: found[1] + found[2].translate(_STAND_INS),
        escaped,
    )


def letters_of(regex: str) -> str:
    """The letters of a regular expression in order: all but operators, counts and blanks.

    Classes give their letters and ranges; one that says what is not meant has no alphabet of its
    own.

    >>> letters_of("(a|b)*ab{2,3}"), letters_of("[a-c]+x"), letters_of(r"a\\.b")
    ('ab', 'abcx', '.ab')
    """
    given, regex = regex, _with_stand_ins(regex)
    if regex.startswith("^") or regex.endswith("$"):
        raise ValueError(
            f"regex {given!r} is about whole words as it is: leave out the ^ before it and the $ "
            "behind it; for letters of these names give its alphabet"
        )
    found: set[str] = set()
    for inside in re.findall(r"\[([^\]]*)\]", regex):
        if inside.startswith("^") or not inside:
            raise _needs_alphabet(given, f"the class [{inside.translate(_BACK)}]")
        for first, last in re.findall(r"(.)(?:-(.))?", inside, re.DOTALL):
            found.update(map(chr, range(ord(first), ord(last or first) + 1)))
    if "\\" in regex:
        raise _needs_alphabet(given, "a backslash before a letter")
    rest = re.sub(r"\[[^\]]*\]|\{[^}]*\}", "", regex)
    found |= set(rest) - OPERATORS
    if not found:
        raise _needs_alphabet(given, "no letters of its own")
    return "".join(sorted("".join(found).translate(_BACK)))


def _needs_alphabet(regex: str, why: str) -> ValueError:
    return ValueError(
        f"the letters of regex {regex!r} cannot be read off, because it has {why}; give its "
        "alphabet: --alphabet abc on the command line, alphabet='abc' in Python, or ' over abc' "
        "behind it"
    )


def dfa_table(dfa: Any) -> tuple[list[list[int]], list[bool], list[Any]]:
    """Table, acceptance and sorted alphabet of an automata-lib `DFA`, completed, start 0."""
    with needs("a DFA", "automata-lib", "automata"):
        from automata.fa.dfa import DFA
    if not isinstance(dfa, DFA):
        raise ValueError(f"expected an automata.fa.dfa.DFA, got {type(dfa).__name__}")
    complete = dfa if not dfa.allow_partial else dfa.to_complete()
    alphabet = sorted(complete.input_symbols)
    number = {complete.initial_state: 0}
    rows: list[list[int]] = []
    queue = [complete.initial_state]
    for state in queue:
        targets = [complete.transitions[state][letter] for letter in alphabet]
        for target in targets:
            if target not in number:
                number[target] = len(number)
                queue.append(target)
        rows.append([number[target] for target in targets])
    return rows, [state in complete.final_states for state in queue], alphabet


def _check_letters(alphabet: Sequence[str]) -> None:
    for letter in alphabet:
        if not isinstance(letter, str) or len(letter) != 1 or ord(letter) in _BACK:
            raise ValueError(
                f"letter {letter!r} cannot be used in a regex: letters are single characters, and "
                "none of the first few for private use; use from_table for it"
            )


def _check_size(regex: str) -> None:
    """Bound the letters of `regex` with its repetitions `{m,n}` written out, before parsing it."""
    sizes = [0]
    last = 0
    for token in re.finditer(r"\{(\d*)(,?)(\d*)\}|\(|\)|.", regex, re.DOTALL):
        text = token.group()
        if text == "(":
            sizes.append(0)
            last = 0
        elif text == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif token.group(1) is not None:
            times = max(int(count or 1) for count in (token.group(1), token.group(3)))
            sizes[-1] += last * (max(times, 1) - 1)
            last *= max(times, 1)
        else:
            last = 1
            sizes[-1] += 1
        if sum(sizes) > MAX_REGEX:
            raise too_large(
                f"regex {regex[:40]!r} written out", sum(sizes), MAX_REGEX, "use fewer repetitions"
            )


def _regex_message(given: str, regex: str, alphabet: Sequence[str], error: BaseException) -> str:
    letters = "".join(alphabet).translate(_BACK)
    for symbol in regex:
        if symbol not in alphabet and symbol not in OPERATORS and not _is_quantifier(regex, symbol):
            letter = symbol.translate(_BACK)
            return f"regex {given!r} uses {letter!r}, which is not in the alphabet {letters!r}"
    for blank in " \t\n":
        if blank in regex:
            return (
                f"regex {given!r} contains a blank; remove it, or put a backslash before it if it "
                "is a letter"
            )
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    if "upper_bound" in reason:
        reason = "of the two numbers of a repetition the first is the smaller one"
    reason = re.sub(r"state \d+ has invalid transition symbol (.)", r"'\1' has no partner", reason)
    reason = re.sub(r"<(?:\w+: )?(.+?)>", r"\1", reason)  # of automata-lib's own classes
    return f"regex {given!r} is malformed: {reason.translate(_BACK)}"


def _is_quantifier(regex: str, symbol: str) -> bool:
    inside = "".join(re.findall(r"\{[\d,]*\}", regex))
    return symbol in inside and symbol not in re.sub(r"\{[\d,]*\}", "", regex)
