"""The engine: the records of one rank in, symptoms and findings out. No clock, file or thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

from msgspec import structs

from tuimon.diagnose.amp import AmpLedger
from tuimon.diagnose.autopsies import MAX_AUTOPSIES, in_order
from tuimon.diagnose.batches import BatchRemarks
from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.crashes import CrashScene
from tuimon.diagnose.detectors import default_detectors
from tuimon.diagnose.evidence import Evidence, Rule
from tuimon.diagnose.findings import Finding, Where
from tuimon.diagnose.incidents import Detector
from tuimon.diagnose.rules import RULES
from tuimon.diagnose.rules.abstaining import abstain
from tuimon.diagnose.trials import decided
from tuimon.model.autopsy import Autopsy
from tuimon.model.causes import SEVERITIES
from tuimon.model.records import AnyRecord, Event, Facts, Pending, Step, Symptom
from tuimon.model.trials import MAX_TRIALS, TrialRecord

MAX_SYMPTOMS = 200  # more describe the same trouble again


class Engine:
    """Feeds detectors, and rules with what they found.

    Attributes:
        symptoms: everything found so far, in the order it was found.
        findings: causes, the likeliest first.
        amp: the GradScaler's account.
        scene: the crash that ended the run, if one did.
        suppressed: symptoms beyond `MAX_SYMPTOMS`.
        trials: what the training has tested.
    """

    def __init__(
        self,
        rank: int = 0,
        *,
        detectors: Iterable[Detector] | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        self.amp = AmpLedger(rank)
        self._rank = rank
        self.scene = CrashScene()
        chosen = default_detectors(rank) if detectors is None else detectors
        self._detectors: list[Detector] = [self.amp, *chosen]
        self._rules = rules
        self._facts: Facts | None = None
        self.symptoms: list[Symptom] = []
        self.findings: list[Finding] = []
        self.suppressed = 0
        self.trials: list[TrialRecord] = []
        self._autopsies: list[Autopsy] = []
        self._circumstances = Circumstances()
        self._batches = BatchRemarks()
        self._rehearsal: Engine | None = None  # while an update is held: as if it were made

    def see(self, record: AnyRecord) -> list[Symptom]:
        """Take one record; the symptoms it is the first to show.

        While an update is held the findings are those that it would lead to, and `symptoms` are
        what has happened.
        """
        if isinstance(record, Pending):
            self._rehearse(record.step)
            return []
        if self._rehearsal is None:
            return self._see(record)
        if isinstance(record, Step):
            self._rehearsal = None
            found = self._see(record)
            self._conclude()
            return found
        found = self._see(record)
        self._rehearsal.see(record)
        self._take_rehearsed()
        return found

    def _rehearse(self, step: Step) -> None:
        self._rehearsal = None
        self._rehearsal = deepcopy(self)
        self._rehearsal.see(step)
        self._take_rehearsed()

    def _take_rehearsed(self) -> None:
        assert self._rehearsal is not None
        self.findings = self._rehearsal.findings_or_unknown()

    def findings_or_unknown(self) -> list[Finding]:
        """The findings, with "unknown" where they carry no cause."""
        unknown = abstain(self._evidence(), self.findings)
        return self.findings if unknown is None else [*self.findings, unknown]

    def _see(self, record: AnyRecord) -> list[Symptom]:
        if isinstance(record, Facts):
            self._facts = record
        self.scene.see(record)
        self._circumstances.see(record)
        if isinstance(record, Autopsy) and len(self._autopsies) < MAX_AUTOPSIES:
            self._autopsies.append(record)
            self._conclude()
        elif isinstance(record, TrialRecord) and len(self.trials) < MAX_TRIALS:
            self.trials.append(record)
            self._conclude()
        found = [symptom for detector in self._detectors for symptom in detector.see(record)]
        return self._keep(found) if found else []

    @property
    def autopsies(self) -> list[Autopsy]:
        """What examinations found; the one that tells most of the run first."""
        return in_order(self._autopsies)

    def remarks(self, record: AnyRecord) -> list[Event]:
        """What this record is worth a line in the event log for, without being a symptom."""
        return self._batches.see(record)

    def last_remarks(self) -> list[Event]:
        """The run has ended: the remarks that waited for more."""
        return self._batches.close()

    def close(self) -> list[Symptom]:
        """The run has ended: the symptoms that waited for more."""
        found = self._keep([s for detector in self._detectors for s in detector.close()])
        self._conclude()  # what the run was like is known only now
        if self._rehearsal is not None:  # it ended while it was held
            self._rehearsal.close()
            self.findings = self._rehearsal.findings
        else:
            self.findings = self.findings_or_unknown()
        return found

    def unrecovered(self) -> set[str]:
        """Kinds of critical incidents that nothing healthy has followed."""
        return {kind for detector in self._detectors for kind in detector.unrecovered()}

    def _keep(self, found: list[Symptom]) -> list[Symptom]:
        room = MAX_SYMPTOMS - len(self.symptoms)
        kept = found[: max(0, room)]
        self.suppressed += len(found) - len(kept)
        self.symptoms.extend(kept)
        if kept:
            self._conclude()
        return kept

    def _evidence(self) -> Evidence:
        return Evidence(
            tuple(self.symptoms),
            self._facts,
            self.amp.verdict,
            # What is finite without the loss scale is a scale that is still being found.
            [each for each in self.autopsies if each.bad_at_scale_1 is not False],
            self._circumstances,
            tuple(self.trials),
        )

    def _conclude(self) -> None:
        evidence = self._evidence()
        # The same cause at the same place is one finding, however often it showed.
        findings: dict[tuple[str, Where], Finding] = {}
        for rule in self._rules:
            for concluded in rule.conclude(evidence):
                finding = _of_rank(concluded, self._rank)
                place = (finding.cause, finding.where)
                known = findings.get(place)
                findings[place] = finding if known is None else _merged(known, finding)
        tested = _placed([decided(each, self.trials) for each in findings.values()])
        self.findings = sorted(tested, key=_weight, reverse=True)


def _of_rank(finding: Finding, rank: int) -> Finding:
    """As a finding of the rank whose records led to it."""
    if finding.where.rank == rank:
        return finding
    return structs.replace(finding, where=structs.replace(finding.where, rank=rank))


def _placed(findings: Sequence[Finding]) -> list[Finding]:
    """Without those that say the same of the same step as another one, but not where."""
    nowhere = [each for each in findings if each.where == Where(rank=each.where.rank)]
    kept = [each for each in findings if each not in nowhere]
    for vague in nowhere:
        for index, placed in enumerate(kept):
            if placed.status != "refuted" and _subject(placed) == _subject(vague):
                kept[index] = structs.replace(
                    placed,
                    severity=max(placed.severity, vague.severity, key=SEVERITIES.index),
                    confidence=max(placed.confidence, vague.confidence),
                )
                break
        else:
            kept.append(vague)
    return kept


def _subject(finding: Finding) -> tuple[str, int | None, int]:
    return finding.cause, finding.step, finding.where.rank


def _merged(known: Finding, new: Finding) -> Finding:
    """The weightier of two, from the first step that showed either: its identity stays."""
    steps = [each.step for each in (known, new) if each.step is not None]
    better = new if _weight(new) > _weight(known) else known
    return structs.replace(better, step=min(steps, default=None))


def _weight(finding: Finding) -> tuple[bool, int, float]:
    refuted = finding.status == "refuted"
    return not refuted, SEVERITIES.index(finding.severity), finding.confidence
