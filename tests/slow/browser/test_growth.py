"""Episodes can be browsed by mouse and keyboard, and show what was recorded."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.slow.browser.conftest import Live, Visit
from tests.slow.browser.processes import ask
from tests.slow.browser.visitor import Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = pytest.mark.slow

MASKED = 65535
HEADS = """() => Object.fromEntries(
    [...document.querySelectorAll("[data-test=decision] .head")].map((head) => {
        const choices = [...head.querySelectorAll(".choice")];
        return [head.getAttribute("aria-label"), {
            is_read: !head.matches(".unread"),
            values: choices.map((one) => one.querySelector(".choice-value").textContent),
            struck: choices.map((one) => one.querySelector("s") !== null),
            chosen: choices.map((one) => one.matches(".chosen")),
        }];
    }))"""
STEPS = "SELECT * FROM steps WHERE env = ? AND episode = ? ORDER BY seq"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """An episode as recorded, with the names behind its indices."""

    env: int
    episode: int
    round: int
    steps: list[Any]
    names: dict[str, list[str]]
    reads: dict[str, list[str]]
    slots: list[str]

    @property
    def address(self) -> str:
        return f"#/run/live/growth/{self.env}/{self.episode}"

    def op(self, step: int) -> str:
        return self.names["op"][self.steps[step]["op"]]

    def words(self, step: int) -> str:
        """Return the description of a step's decision."""
        row, op = self.steps[step], self.op(step)
        words = [op.replace("_", " ")]
        if "blueprint" in self.reads[op]:
            words.append(self.names["blueprint"][row["blueprint"]].replace("_", " "))
        if "slot" in self.reads[op]:
            words += ["in" if "blueprint" in self.reads[op] else "at", self.slots[row["slot"]]]
        return " ".join(words)

    def slot_is_live(self, step: int, slot: int) -> bool:
        return json.loads(self.steps[step]["slots"])[slot][1] >= 0

    def probabilities(self, step: int) -> dict[str, list[int]]:
        """Return the recorded probability of each choice of each head."""
        packed = self.steps[step]["probabilities"]
        values = list(struct.unpack(f"<{len(packed) // 2}H", packed))
        return {head: [values.pop(0) for _ in names] for head, names in self.names.items()}


def recorded(run_dir: Path, env: int, episode: int) -> Recorded:
    (run,) = ask(run_dir, "SELECT * FROM runs")
    steps = ask(run_dir, STEPS, env, episode)
    return Recorded(
        env=env,
        episode=episode,
        round=steps[-1]["round"],
        steps=steps,
        names=json.loads(run["choices"]),
        reads=json.loads(run["reads"]),
        slots=json.loads(run["slots"]),
    )


@pytest.fixture
def visitor(live: Live, visit: Visit) -> Visitor:
    """Return a visitor of a run with at least one finished episode that grew something."""
    visitor = visit()
    visitor.open(live.served.link)
    visitor.go("#/run/live")
    visitor.until("() => Number(document.querySelector('[data-test=round]')?.textContent) >= 4")
    return visitor


@pytest.fixture
def grown(visitor: Visitor, live: Live) -> Recorded:
    """Return a finished episode in which a seed was germinated after the first step."""
    found = ask(
        live.run_dir,
        "SELECT e.env, e.episode FROM seed_events AS e JOIN episodes USING (env, episode) "
        "WHERE to_stage = 'germinated' AND epoch > 1 AND ep_len > epoch + 1",
    )
    return recorded(live.run_dir, *found[0])


def germination(episode: Recorded) -> tuple[int, int]:
    """Return the first later step that germinates, and its slot."""
    for step, row in enumerate(episode.steps):
        slot = row["slot"]
        is_empty = step > 0 and not episode.slot_is_live(step - 1, slot)
        if is_empty and episode.slot_is_live(step, slot) and episode.op(step) == "germinate":
            return step, slot
    raise AssertionError("nothing was germinated")


def heading(visitor: Visitor) -> Locator:
    return visitor.find("decision").locator("h2").first


def wait_for_step(visitor: Visitor, episode: Recorded, step: int) -> None:
    """Wait until a step is selected and its decision is shown."""
    visitor.page.locator(f'[data-test="step-{step}"][aria-selected="true"]').wait_for()
    assert heading(visitor).inner_text() == episode.words(step)


def shown_episode(visitor: Visitor, live: Live) -> Recorded:
    """Return the recorded episode that the URL names."""
    address = visitor.until("() => location.hash.match(/growth.(\\d+).(\\d+)/)?.slice(1, 3)")
    return recorded(live.run_dir, *map(int, address))


def first_returns(visitor: Visitor) -> list[str]:
    """Return the texts of the first episodes in the list."""
    return visitor.until(
        "() => { const all = [...document.querySelectorAll('.episode-item strong')];"
        " return all.length > 3 && all.map((one) => one.textContent); }"
    )


def test_an_episode_opens_by_mouse_and_hover_shows_decisions(live: Live, visitor: Visitor) -> None:
    visitor.page.get_by_role("link", name="Growth").click()
    visitor.page.locator(".episode-orders [aria-pressed=true]", has_text="best").wait_for()
    visitor.page.get_by_role("button", name="worst", exact=True).click()
    visitor.page.locator(".episode-item.chosen").first.wait_for()
    visitor.page.get_by_role("button", name="best", exact=True).click()
    first = visitor.page.locator(".episode-item").first
    returns = [float(text.replace("\N{MINUS SIGN}", "-")) for text in first_returns(visitor)]
    # Episodes may have ended since the list was asked for, so its best is at most that.
    best = "SELECT MAX(ep_rew) FROM episodes WHERE seed_parameters > 0"
    assert returns[0] <= ask(live.run_dir, best)[0][0] + 0.0005
    first.click()
    visitor.page.locator(".episode-item.chosen").first.wait_for()
    episode = shown_episode(visitor, live)
    result = "SELECT ep_rew, seed_parameters FROM episodes WHERE env = ? AND episode = ?"
    ((ep_rew, seed_parameters),) = ask(live.run_dir, result, episode.env, episode.episode)
    assert seed_parameters > 0
    assert returns[0] == pytest.approx(ep_rew, abs=0.0006)
    visitor.find("timeline").wait_for()
    for step in (0, len(episode.steps) - 1, len(episode.steps) // 2):
        visitor.find(f"step-{step}").hover()
        wait_for_step(visitor, episode, step)
    visitor.find("step-0").click()
    wait_for_step(visitor, episode, 0)


def test_everything_opens_by_keyboard(live: Live, visit: Visit, grown: Recorded) -> None:
    visitor = visit()
    visitor.open(live.served.link)
    visitor.find("run-row").wait_for()
    keys = visitor.page.keyboard
    visitor.tab_to('a[href="#/run/live"]')
    keys.press("Enter")
    visitor.find("round").wait_for()
    # Tabs come before the content, which has the keyboard after a change of screens.
    visitor.until("() => document.activeElement.id === 'main'")
    for _ in range(20):
        keys.press("Shift+Tab")
        if visitor.focused().endswith("Growth"):
            break
    keys.press("Enter")
    visitor.page.locator(".episode-item").first.wait_for()
    visitor.until("() => document.activeElement.id === 'main'")
    for wanted in (grown.env, grown.round, grown.round):
        visitor.tab_to(".episode-filter input")
        keys.type(str(wanted))
    # The list is one stop of Tab; arrow keys go through it.
    visitor.tab_to(".episode-item")
    keys.press("Home")
    for _ in range(grown.episode + 9):
        if visitor.page.evaluate("document.activeElement.getAttribute('href')") == grown.address:
            break
        keys.press("ArrowDown")
    keys.press("Enter")
    visitor.page.locator(f'.episode-item.chosen[href="{grown.address}"]').wait_for()
    visitor.tab_to("[data-test^=step-]")
    last = len(grown.steps) - 1
    for key, step in (("Home", 0), ("ArrowRight", 1), ("End", last), ("ArrowLeft", last - 1)):
        keys.press(key)
        wait_for_step(visitor, grown, step)
    assert visitor.focused() == f"step-{last - 1}"
    visitor.tab_to(".player input")
    keys.press("Home")
    wait_for_step(visitor, grown, 0)
    keys.press("ArrowRight")
    wait_for_step(visitor, grown, 1)


def test_masked_choices_and_unread_heads_are_marked(visitor: Visitor, grown: Recorded) -> None:
    visitor.go(grown.address)
    visitor.find("timeline").wait_for()
    n_masked = 0
    for step in range(len(grown.steps)):
        visitor.find(f"step-{step}").click()
        wait_for_step(visitor, grown, step)
        heads = visitor.page.evaluate(HEADS)
        for head, values in grown.probabilities(step).items():
            is_masked = [value == MASKED for value in values]
            shown = heads.pop(head.replace("_", " "))
            assert [text == "masked" for text in shown["values"]] == is_masked
            assert shown["struck"] == is_masked
            assert shown["chosen"].index(True) == grown.steps[step][head]
            assert shown["is_read"] == (head in grown.reads[grown.op(step)])
            n_masked += sum(is_masked)
            for text, value in zip(shown["values"], values, strict=True):
                if text not in ("masked", "< 0.1%", "> 99.9%"):
                    share = 100 * value / (MASKED - 1)
                    assert float(text.removesuffix("%")) == pytest.approx(share, abs=0.51)
        assert heads == {}
    assert n_masked > 0


def test_scrubbing_changes_the_decision_and_the_network(visitor: Visitor, grown: Recorded) -> None:
    step, slot = germination(grown)
    blueprint = grown.names["blueprint"][grown.steps[step]["blueprint"]].replace("_", " ")
    visitor.go(grown.address)
    slider = visitor.page.locator(".player input")
    slider.fill(str(step - 1))
    wait_for_step(visitor, grown, step - 1)
    picture = visitor.find("network")
    seat = picture.locator("g > title", has_text=f"{grown.slots[slot]}:")
    before, words = picture.inner_html(), seat.text_content()
    assert blueprint not in (words or "")
    slider.fill(str(step))
    wait_for_step(visitor, grown, step)
    assert blueprint in (seat.text_content() or "")
    assert picture.inner_html() != before
    # The address keeps the step, so a link or a reload shows the same.
    visitor.until("(end) => location.hash.endsWith(end)", f"step={step + 1}")
    visitor.page.reload()
    wait_for_step(visitor, grown, step)


def test_arrows_and_space_go_through_an_episode_from_anywhere(
    visitor: Visitor, grown: Recorded
) -> None:
    visitor.go(f"{grown.address}?step=1")
    wait_for_step(visitor, grown, 0)
    keys = visitor.page.keyboard
    visitor.page.locator("main").focus()
    for key, step in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        keys.press(key)
        wait_for_step(visitor, grown, step)
    keys.press(" ")
    wait_for_step(visitor, grown, 2)
    keys.press(" ")
    visitor.page.get_by_role("button", name="Play").wait_for()
    # Keys that are typed into a field are not shortcuts.
    visitor.page.locator(".episode-filter input").first.focus()
    before = visitor.page.locator(".player input").input_value()
    keys.press("ArrowRight")
    assert visitor.page.locator(".player input").input_value() == before


def test_the_list_of_episodes_is_one_tab_stop(visitor: Visitor) -> None:
    visitor.page.get_by_role("link", name="Growth").click()
    visitor.page.locator(".episode-item.chosen").first.wait_for()
    first_returns(visitor)
    stops = visitor.page.evaluate(
        "() => [...document.querySelectorAll('.episode-item')]"
        ".filter((one) => one.tabIndex === 0).map((one) => one.className)"
    )
    assert stops == ["episode-item chosen"]
    visitor.page.locator("main").focus()
    # The run is live, so new episodes push the chosen one down; the one below it stays there.
    below = visitor.page.locator("li:has(> .chosen) + li > .episode-item").get_attribute("href")
    visitor.page.keyboard.press("j")
    visitor.page.locator(f'.episode-item.chosen[href="{below}"]').wait_for()


def test_the_epochs_of_a_timeline_end_with_the_last(visitor: Visitor, grown: Recorded) -> None:
    visitor.go(grown.address)
    visitor.find("timeline").wait_for()
    texts = visitor.page.locator("[data-test=timeline] text.tick").all_text_contents()
    last = grown.steps[-1]["epoch"]
    assert {str(last), f"{last}, end"} & {text.strip() for text in texts}


def test_playing_runs_to_the_end(visitor: Visitor, grown: Recorded) -> None:
    visitor.go(grown.address)
    last = len(grown.steps) - 1
    visitor.page.locator(".player input").fill(str(last - 2))
    wait_for_step(visitor, grown, last - 2)
    visitor.page.get_by_role("button", name="Play").click()
    wait_for_step(visitor, grown, last)
    visitor.page.get_by_role("button", name="Play").wait_for()
