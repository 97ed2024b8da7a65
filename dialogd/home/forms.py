"""What Home's page asks and is told, as JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from dialogd.views.standing import Run

LONGEST_PATH = 4_096  # characters
MOST_AGENTS = 26
MOST_FILES = 50
SHORT = 200  # characters of a name

Text = Annotated[str, Field(max_length=1_000_000)]
Name = Annotated[str, Field(max_length=SHORT)]
Place = Annotated[str, Field(max_length=LONGEST_PATH)]

# -- The list ---------------------------------------------------------------------------------------------------------


class ListedAgent(BaseModel):
    """An agent of a dialog; `backend` and `model` are "" where nobody knows any more."""

    id: str
    name: str
    backend: str = ""
    model: str = ""


class Listed(BaseModel):
    """A dialog in the list.

    `state`: `starting` (its daemons are), `running`, `waiting` (for the person, or paused), `asleep` (not ended, but no
    daemon runs), `ended`. `words` says in one sentence how it stands. `cost` is in words, "" where nobody knows. `url`
    is the page of a daemon that runs, "" without one; `past` the page to read it on without one, "" where it is not in
    the archive. Times are ISO, "" where unknown.
    """

    id: str
    topic: str
    file: str
    state: Run
    words: str
    waits_for_you: bool = False
    agents: list[ListedAgent]
    cost: str = ""
    usd: float | None = None
    started: str = ""
    ended: str = ""
    outcome: str = Field(default="", description="the mark that ended it: CONSENSUS_REACHED, DEADLOCK, STOPPED …")
    turns: int = 0
    url: str = ""
    past: str = ""
    rehearsal: bool = False
    found: str = Field(default="", description="where the words searched for were said: a part of that text")


class Dialogs(BaseModel):
    """A page of the list: first what waits for the person, then what runs, then the past, newest first."""

    dialogs: list[Listed]
    more: bool = Field(default=False, description="there are more behind these")
    after: int = Field(default=0, description="what to ask for as `after`, to get those")


# -- What a dialog can be made of -------------------------------------------------------------------------------------


class OfferedBackend(BaseModel):
    """A backend of this machine.

    `answers` says who answers, `pays` who pays, `sees` who sees what, each in a few words. `models` are those to choose
    from, the default first; any other name may be typed where `any_model`. `project`: it may be given a folder.
    `reads` says what it may do there.
    """

    id: str
    title: str
    answers: str
    pays: str
    sees: str
    ready: bool
    why_not: str = ""
    fix: str = ""
    models: list[str] = []
    any_model: bool = True
    metered: bool = Field(default=False, description="a key pays for every token")
    project: bool = False
    reads: str = ""


class Pattern(BaseModel):
    """A template. `least` and `most` are how many agents it takes (`most` 0: any number), `cast` their names."""

    name: str
    sentence: str
    agents: str
    least: int
    most: int
    cast: list[str] = []
    turns: int = 0
    where: str = ""


class Open(BaseModel):
    """An open coding session, which may be asked to take a seat."""

    key: str
    program: str
    project: str
    name: str
    idle: bool
    seat: str = Field(default="", description="the seat that it holds already; then it cannot be asked")


class Defaults(BaseModel):
    """What counts where nothing is said."""

    turns: int
    timeout: str
    budget: str = Field(description="that counts where a key pays and none is given")
    template: str
    agents: list[str] = Field(description="backends of the first agents, as `auto` chooses them; [] for none")


class Choices(BaseModel):
    """What a dialog can be made of, here and now. `here` is the folder that Home works in."""

    backends: list[OfferedBackend]
    templates: list[Pattern]
    sessions: list[Open]
    defaults: Defaults
    projects: list[str] = Field(description="folders that agents worked in lately, the newest first")
    here: str
    home: str = Field(description="the person's own folder")


# -- Files and folders ------------------------------------------------------------------------------------------------


class Paths(BaseModel):
    """Files that are to go along; relative ones count from `project`, else from the folder that Home works in."""

    model_config = ConfigDict(extra="forbid")

    project: Place = ""
    paths: list[Place] = Field(default=[], max_length=MOST_FILES)


class Along(BaseModel):
    """A file as it would go along: `text` without secrets, up to a whole line. `refused` says why it cannot, if so."""

    path: str
    name: str
    text: str = ""
    size: int = 0
    cut: bool = False
    secrets: int = Field(default=0, description="how many were taken out")
    refused: str = ""
    fix: str = ""


class ContextFiles(BaseModel):
    """The files that would go along. `refused`: why they cannot all, together."""

    files: list[Along]
    size: int = Field(description="bytes of all texts")
    most: int = Field(description="bytes that they may have together")
    refused: str = ""
    fix: str = ""


class FolderItem(BaseModel):
    """A folder or a file."""

    name: str
    path: str
    size: int = 0


class Folder(BaseModel):
    """What is in a folder: no hidden names, no links that lead out of it, nothing of other users."""

    path: str
    parent: str = Field(default="", description='the folder above, "" where one may go no further up')
    folders: list[FolderItem]
    files: list[FolderItem] = []
    more: bool = False


# -- A new dialog -----------------------------------------------------------------------------------------------------


class Seated(BaseModel):
    """An agent of the new dialog: a backend of the choices, or the key of a session that is to be asked."""

    model_config = ConfigDict(extra="forbid")

    backend: Name = ""
    model: Name = ""
    project: Place = ""
    session: Name = ""


class Start(BaseModel):
    """A dialog as it is asked for. What is left out is as the template or the settings say."""

    model_config = ConfigDict(extra="forbid")

    question: Text
    template: Name = ""
    agents: list[Seated] = Field(default=[], max_length=MOST_AGENTS)
    budget: Name = Field(default="", description="$2.00, 200k tokens")
    max_turns: int | None = Field(default=None, ge=1, le=100_000)
    timeout: Name = Field(default="", description="of one reply: 5m, 90 seconds")
    max_time: Name = Field(default="", description="of the whole dialog: 30m")
    context: list[Place] = Field(default=[], max_length=MOST_FILES)
    project: Place = Field(default="", description="the folder that agents without one of their own work in")
    rehearsal: bool = Field(default=False, description="scripted lines in every seat: no model is asked, nobody pays")
    slow: float = Field(default=0, ge=0, le=60, description="of a rehearsal: the seconds that each reply takes")
    unattended: bool = Field(default=False, description="nothing waits for the person; every path has an end")
    key: Name = Field(default="", description="any name of your own: asked again with the same, nothing starts twice")


class CostEstimate(BaseModel):
    """What it may cost, in words and US dollars; null where nobody knows. `calls` of models, at most."""

    words: str
    low: float | None = None
    high: float | None = None
    calls: int
    notes: list[str] = []


class GoOn(BaseModel):
    """Which dialog is to go on: one that is asleep."""

    model_config = ConfigDict(extra="forbid")

    dialog: Name


class CarryOut(BaseModel):
    """What a dialog decided, and the person approved, to be carried out in a repository; `gate` is what tests it."""

    model_config = ConfigDict(extra="forbid")

    dialog: Name
    repo: Place
    gate: Place = ""


class WouldBe(BaseModel):
    """What it would be, in lines: who works, who pays, what it may cost, where, how long."""

    lines: list[str]


class Started(BaseModel):
    """A dialog that was begun. `url` is its page, "" while its daemons still start: then it comes in the list."""

    id: str
    file: str
    url: str = ""
