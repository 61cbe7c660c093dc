"""Completions in real shells, and manual pages in real readers, as `make wheel` builds them."""

import re
import shutil
import subprocess

import pytest
from conftest import RELEASE
from waiting import HANG_SECONDS

pytestmark = pytest.mark.long

NEEDS = "needs {}, as from Debian's package of that name"


def needed(program):
    return program if shutil.which(program) else pytest.skip(NEEDS.format(program))


def outcome(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=HANG_SECONDS, **options)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request):
    return needed(request.param)


@pytest.fixture
def complete(memlab, shell):
    """The shell's proposals for a command line that ends at the cursor."""
    script = memlab.folder / "completions"
    script.write_text(outcome(memlab.command, "completions", shell))
    environment = memlab.environment(PATH=f"{RELEASE}:/usr/bin:/bin", HOME=memlab.folder, TERM="dumb")

    def in_bash(line):
        words = " ".join(f"'{word}'" for word in line.split(" "))
        program = f"source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        program += f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; "
        program += '_memlab memlab "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; printf "%s\\n" "${COMPREPLY[@]}"'
        return outcome("bash", "--norc", "--noprofile", "-c", program, env=environment, cwd=memlab.folder)

    def in_zsh(line):
        # zsh completes on a terminal only, from its prompt on. Control-D lists the candidates, Control-U clears the line.
        (memlab.folder / "_memlab").write_text(script.read_text())
        program = f"""
            zmodload zsh/zpty
            zpty shell zsh -f -i
            zpty -w shell 'unsetopt zle_bracketed_paste; LISTMAX=1000; fpath=({memlab.folder} $fpath)'
            zpty -w shell 'autoload -U compinit; compinit -u; stty cols 200; PS1=READ""Y:'
            zpty -r -m shell _ '*READY:*'
            zpty -w -n shell {line!r}$'\\C-d\\C-uecho DO""NE\\n'
            zpty -r -m shell answer '*DONE*'
            print -r -- "$answer"
            zpty -d shell
        """
        return outcome("zsh", "-f", "-c", program, env=environment, cwd=memlab.folder)

    def in_fish(line):
        program = f"source {script}; complete --do-complete '{line}'"
        return outcome("fish", "--no-config", "-c", program, env=environment, cwd=memlab.folder)

    return {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}[shell]


def test_completions(complete):
    # GIVEN a shell with memlab's completions
    # THEN it completes commands, their options, and values with a fixed set of choices
    assert {"report", "restore"} <= set(re.findall(r"\w+", complete("memlab re")))
    assert "--timeline" in complete("memlab run --ti")
    assert {"spill"} <= set(re.findall(r"[\w-]+", complete("memlab run --on-limit sp")))
    assert {"csv", "speedscope"} <= set(re.findall(r"\w+", complete("memlab export --format ")))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    outcome(RELEASE / "examples" / "man_pages", folder, "2026-11-24")
    return folder


def test_every_command_has_a_page(memlab, pages):
    help = outcome(memlab.command, "--help").split("Commands:\n")[1].split("\n\n")[0]
    commands = set(re.findall(r"^  (\w+)", help, re.MULTILINE)) - {"help"}
    assert {page.name for page in pages.iterdir()} == {"memlab.1", *(f"memlab-{command}.1" for command in commands)}


@pytest.mark.parametrize("reader", ["man", "mandoc"])
def test_pages_are_read_without_warnings(memlab, pages, reader):
    # GIVEN the pages; WHEN a reader formats them THEN it prints no warning
    needed(reader)
    for page in pages.iterdir():
        command = ["man", "--warnings", "--local-file"] if reader == "man" else ["mandoc", "-T", "utf8", "-W", "warning"]
        text = re.sub(".\b", "", outcome(*command, page, env=memlab.environment(MANWIDTH=100, LC_ALL="C.UTF-8")))
        # AND they have the name, its description and the options
        assert page.stem in text and re.search(r"^OPTIONS", text, re.MULTILINE) and "--help" in text
    # AND examples are laid out as in the help
    assert "Examples:\n         memlab simulate -- python train.py\n" in re.sub(
        ".\b", "", outcome(*command, pages / "memlab-simulate.1", env=memlab.environment(LC_ALL="C.UTF-8"))
    )
