"""Every word that teaches the command, once: for --help, the manual page, the reference page and shell completion."""

from __future__ import annotations


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each in one line."""
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


class Option:
    """One option.

    Attributes:
        flag: Its long name.
        value: What its argument is called; empty for a switch.
        text: What it does, with its default.
        kind: How its argument is read: text, duration, status, or a list of words with | between them.
    """

    # No NamedTuple, here and below: importing it would cost a start 2.5 ms.
    __slots__ = ("flag", "kind", "text", "value")

    def __init__(self, flag: str, value: str, text: str, kind: str = "text") -> None:
        self.flag = flag
        self.value = value
        self.text = text
        self.kind = kind


class Command:
    """One subcommand.

    Attributes:
        name: Its name.
        summary: One line.
        positional: What stands beside the options, as in a usage line.
        text: What explains it; `paragraphs` takes it apart.
        options: Its options.
        examples: Pairs of what for, and the line to type.
    """

    __slots__ = ("examples", "name", "options", "positional", "summary", "text")

    def __init__(
        self,
        name: str,
        summary: str,
        positional: str,
        text: str,
        options: tuple[Option, ...],
        examples: tuple[tuple[str, str], ...],
    ) -> None:
        self.name = name
        self.summary = summary
        self.positional = positional
        self.text = text
        self.options = options
        self.examples = examples


def synopsis(command: Command) -> list[str]:
    """The words of a usage line, after the command's name."""
    words = []
    for option in command.options:
        shown = f"{option.flag} {option.value}".strip()
        words.append(shown if option.flag == "--key" else f"[{shown}]")
    return [*words, command.positional] if command.positional else words


_KEY = Option("--key", "K", "the name of the lock: 1 to 500 characters; one running command for each")
_TTL = Option(
    "--ttl",
    "D",
    "how long the lease lasts after its last renewal (30s, at least 0.5s); it is renewed every third of that, "
    "and frees the key by itself that long after a crash",
    "duration",
)
_STORE = Option(
    "--store",
    "URL",
    "where leases live: sqlite:////srv/app/locks.db, redis://host:6379/0, rediss://…, redis+sentinel://…, "
    "redis+cluster://…, postgresql://…; else $PYRESIL_STORE, else this user's SQLite file",
)
_GRACE = Option("--grace", "D", "between TERM and KILL when the command must end (10s)", "duration")
_LOG = (
    Option("--quiet", "", "say nothing but errors"),
    Option("--verbose", "", "also say what goes well"),
    Option("--log-format", "FORMAT", "text or json: one JSON object for each message (text)", "text|json"),
)
_FORMAT = Option("--format", "FORMAT", "table for people, json for programs (table)", "table|json")

RUN = Command(
    "run",
    "run a command unless the key is taken",
    "-- COMMAND [ARGUMENT…]",
    """
    Takes the lease on the key, runs the command, keeps the lease alive meanwhile, ends whatever the
    command left behind, gives the lease back, and exits with the command's status. If the key is taken
    it does not wait (see --wait): it exits with 75 and the command does not run.

    The command gets PYRESIL_LOCK_KEY, PYRESIL_LOCK_TOKEN (a number that grows with every acquisition:
    hand it to what you write to, and have it refuse smaller ones), PYRESIL_LOCK_OWNER and
    PYRESIL_LOCK_TTL (seconds). PYRESIL_STORE is taken out of its environment.

    TERM, INT, HUP and QUIT go to the command's process group, USR1 and USR2 to the command itself. When
    it has ended, what it left in the background, daemons included, gets TERM, and KILL after the grace;
    only then the lease is released. SIGKILL of pyresil-lock kills all of the command's processes, on
    Linux.

    A lease that is lost (the store refused it, or was out of reach until the lease's end) ends the
    command: TERM, and KILL after the grace. So does a pause of pyresil-lock that lasts longer than the
    ttl.
    """,
    (
        _KEY,
        _TTL,
        Option("--wait", "D", "wait so long for a key that is taken (0)", "duration"),
        _STORE,
        Option(
            "--min-hold",
            "D",
            "keep the key closed so long after the start even if the command ends sooner: more than the clocks of the hosts "
            "differ that start it at the same minute (0)",
            "duration",
        ),
        Option(
            "--max-hold",
            "D",
            "give the lease up so long after it was acquired although the command still runs: it counts as lost",
            "duration",
        ),
        Option(
            "--timeout",
            "D",
            "end the command when it ran so long: TERM, and KILL after the grace; exit with 124",
            "duration",
        ),
        Option(
            "--jitter",
            "D",
            "first sleep for a random time up to D, so that many hosts spread (0)",
            "duration",
        ),
        _GRACE,
        Option("--busy-exit", "N", "exit with N instead of 75 when the key is taken", "status"),
        Option("--busy-ok", "", "exit with 0 when the key is taken"),
        Option("--lost-exit", "N", "exit with N instead of 76 when the lease was lost", "status"),
        *_LOG,
    ),
    (
        ("an export every five minutes, never two at once", "pyresil-lock run --key export -- ./export.sh"),
        (
            "one of many hosts each night, others stay silent",
            "pyresil-lock run --key nightly --min-hold 1m --busy-ok --quiet --store redis://db:6379/0 -- ./nightly.sh",
        ),
        ("wait for a turn, but not for ever", "pyresil-lock run --key deploy --wait 10m -- ./deploy.sh"),
        (
            "never longer than an hour",
            "pyresil-lock run --key report --timeout 1h --grace 30s -- ./report.py",
        ),
    ),
)
LEAD = Command(
    "lead",
    "keep a command running on exactly one host",
    "-- COMMAND [ARGUMENT…]",
    """
    Start it on every host. One of them gets the lease and runs the command; when the command ends it is
    started there again, after 1 s, doubling to 30 s while it ends soon. The others wait and take over
    when the leader stops or is lost. A leader that loses the lease ends the command and waits with the
    others.

    TERM, INT and QUIT end it: the command is told, the lease is given back at once, and the status is
    the command's. HUP, USR1 and USR2 are passed on.
    """,
    (_KEY, _TTL, _STORE, _GRACE, *_LOG),
    (("a scheduler that must run once in the fleet", "pyresil-lock lead --key scheduler -- ./scheduler"),),
)
STATUS = Command(
    "status",
    "say who holds a key",
    "KEY",
    "Prints one line, or JSON: held or free, by whom, with which token, for how long at most.",
    (_STORE, _FORMAT),
    (("who runs the export?", "pyresil-lock status export"),),
)
LIST = Command(
    "list",
    "list the keys that are held",
    "[PREFIX]",
    "All of them, or those that start with PREFIX.",
    (
        _STORE,
        _FORMAT,
        Option("--watch", "", "show them again every 2 seconds until interrupted"),
    ),
    (("what runs at the moment?", "pyresil-lock list --watch"),),
)
RELEASE = Command(
    "release",
    "free a key that somebody holds",
    "KEY",
    """
    For when you know that the holder is gone and cannot wait for the lease to end. A holder that still
    runs is told at its next renewal, within a third of its ttl: until then two may run. Hence --force.
    """,
    (_STORE, Option("--force", "", "yes, although somebody may still be working under it")),
    (("the host burnt down", "pyresil-lock release export --force"),),
)
DOCTOR = Command(
    "doctor",
    "check the store and this host",
    "",
    """
    Takes, renews and gives back a lease of its own, measures the round trips, looks at how the store is
    set up, and at what this system can do. Exits with 0 when leases work (warnings included), else with
    69.
    """,
    (_STORE, Option("--format", "FORMAT", "text for people, json for programs (text)", "text|json")),
    (("before you rely on it", "pyresil-lock doctor --store redis://db:6379/0"),),
)
COMPLETION = Command(
    "completion",
    "print the completion script of a shell",
    "bash|zsh",
    "Source it, or put it where the shell looks for completions.",
    (),
    (
        ("bash, in ~/.bashrc", 'eval "$(pyresil-lock completion bash)"'),
        ("zsh, in ~/.zshrc after compinit", 'eval "$(pyresil-lock completion zsh)"'),
    ),
)
MANUAL = Command(
    "manual",
    "print the manual page",
    "",
    "For man(1), or as the reference page of the documentation.",
    (Option("--format", "FORMAT", "man or markdown (man)", "man|markdown"),),
    (("read it", "pyresil-lock manual | man -l -"),),
)
COMMANDS = (RUN, LEAD, STATUS, LIST, RELEASE, DOCTOR, COMPLETION, MANUAL)

SUMMARY = "run a command under a lease: one at a time, on one host or across many"
ABOUT = """
    Durations are seconds or have a unit: 250ms, 1.5s, 2m, 24h, 7d. Everything after -- is the command,
    as it is.

    The default store is $XDG_STATE_HOME/pyresil/locks.db, or ~/.local/state/pyresil/locks.db; root's is
    /var/lib/pyresil/locks.db. Two users have two files and do not exclude each other: name one with
    --store or PYRESIL_STORE that both can write to.
"""
STATUSES = (
    ("the command's", "it ran"),
    ("128+N", "signal N ended it, or ended pyresil-lock while it waited (then nothing was acquired)"),
    ("2", "wrong usage; the command did not run"),
    ("69", "the store cannot be used; the command did not run"),
    ("75", "the key is taken; the command did not run (--busy-exit, --busy-ok)"),
    ("76", "the lease was lost and the command was ended (--lost-exit)"),
    ("124", "--timeout ended the command"),
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
)
