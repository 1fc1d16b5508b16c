"""A page whose indented blocks are terminals: `$ command`, then what it prints.

In what is printed, `…` stands for anything within a line, and a line of `…` alone for any number of lines. A comment before a
block says what a reader does by hand:

    <!-- terminal: NAME, until: WORDS -->   the command stays in a terminal of its own until it has said this
    <!-- end: NAME -->                      Ctrl-C in that terminal
    <!-- not typed: WHY -->                 the block is for readers only
"""
import dataclasses
import re

MARK = re.compile(r"^<!-- (?:terminal: (?P<terminal>\w+), until: (?P<until>.+?)|end: (?P<end>\w+)|not typed: (?P<why>.+?)) -->$")
PROMPT = "    $ "


@dataclasses.dataclass
class Turn:
    command: str
    line: int
    expected: list


@dataclasses.dataclass
class Step:
    turns: list
    terminal: str = ""
    until: str = ""


def read(path):
    steps, mark, turns = [], {}, []

    def close():
        nonlocal mark, turns
        assert len(turns) == 1 or not mark.get("terminal"), f"line {turns[1].line}: this terminal is taken; write words before the block"
        if turns and not mark.get("why"):
            steps.append(Step(turns, mark.get("terminal") or "", mark.get("until") or ""))
        if turns:
            mark, turns = {}, []

    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith(PROMPT):
            turns.append(Turn(line.removeprefix(PROMPT), number, []))
        elif line.startswith("    ") and turns:
            text = line.removeprefix("    ")
            if is_open(turns[-1].command):
                turns[-1].command += "\n" + text
            else:
                turns[-1].expected.append(text)
        elif found := MARK.match(line):
            close()
            mark = found.groupdict()
            if mark["end"]:
                steps.append(Step([Turn("^C", number, ["…"])], terminal=mark["end"]))
                mark = {}
        elif line.strip():
            close()
        elif turns and is_open(turns[-1].command):
            turns[-1].command += "\n"
        elif turns:
            # An empty line inside a block is part of what was printed, if the block goes on after it.
            turns[-1].expected.append("")
    close()
    for step in steps:
        for turn in step.turns:
            while turn.expected and not turn.expected[-1]:
                turn.expected.pop()
    assert steps, f"{path} has no commands"
    return steps


def is_open(command):
    """Whether the next line still belongs to what is typed: a here-document ends with END."""
    return "<<'END'" in command and not command.endswith("\nEND")


def difference(expected, said):
    """What differs, in words; nothing if the output is as the page says."""
    lines = [line.rstrip() for line in said.splitlines()]
    pattern = "".join(r"(?:[^\n]*\n)*?" if line.strip() == "…" else pattern_of(line) for line in expected)
    if re.fullmatch(pattern, "".join(line + "\n" for line in lines)):
        return None
    return "--- the page says:\n" + "\n".join(expected)


def pattern_of(line):
    # The columns of a table are as wide as their widest word: any number of blanks is as good.
    words = [r"[^\n]*?".join(re.escape(part) for part in word.split("…")) for word in line.split()]
    return r"[ ]*" + r"[ ]+".join(words) + r"[ ]*\n"
