"""Define the reports: the JSON files that each stage writes for later stages and auditors.

    base                                    what all reports share; their files and schema
    traffic, drift, examples, policy,       the reports of these stages, one module each
    prompt, train, gate
    evaluation                              the reports of stages baseline and challenger
    champion                                what is served now, written by the flow
    model                                   the bytes of the given base model, written by the flow
    registration                            which look at the test set this is, written by the flow
    shown                                   the arms on validation examples, for people to read
    environment                             the packages that a run worked with, written by the flow
    audit                                   what an audit found
    wording                                 the gate's checks as sentences
    plain                                   the checks for the person who must sign
    drift_wording                           a drift report in words

Callers import all but the last three from here. Every stage depends on what is imported here, so
the wording stays out: a changed sentence must not repeat a training.
"""

from rft.reports.base import (
    SCHEMA,
    Report,
    parse,
    parse_line,
    read,
    read_jsonl,
    write,
    write_json,
    write_jsonl,
    write_lines,
)
from rft.reports.champion import Champion
from rft.reports.drift import Against, Bar, Carrier, Contract, DriftReport, FeatureDrift
from rft.reports.evaluation import Arm, BaselineReport, ChallengerReport, Evaluation, HackSource, Row
from rft.reports.examples import ExamplesReport, NearDuplicates, NearPair
from rft.reports.gate import Check, Decision, PromotionRequest
from rft.reports.model import Model, ModelFile, ModelKind
from rft.reports.policy import PolicyReport
from rft.reports.prompt import Candidate, PromptReport, PromptSettings
from rft.reports.registration import NOTHING_NEW, Opening, Registration
from rft.reports.shown import Shown
from rft.reports.traffic import (
    Conversation,
    Feature,
    FeatureGroup,
    Manifest,
    Part,
    Profile,
    Source,
    Statistic,
    TrafficReport,
    Unread,
)
from rft.reports.train import Fall, TrainReport
from rft.types import Metric

__all__ = [
    "NOTHING_NEW", "SCHEMA", "Against", "Arm", "Bar", "BaselineReport", "Candidate", "Carrier", "ChallengerReport",
    "Champion", "Check", "Contract", "Conversation", "Decision", "DriftReport", "Evaluation", "ExamplesReport", "Fall",
    "Feature", "FeatureDrift", "FeatureGroup", "HackSource", "Manifest", "Metric", "Model", "ModelFile", "ModelKind",
    "NearDuplicates", "NearPair", "Opening", "Part", "PolicyReport", "Profile", "PromotionRequest", "PromptReport",
    "PromptSettings", "Registration", "Report", "Row", "Shown", "Source", "Statistic", "TrafficReport", "TrainReport",
    "Unread", "parse", "parse_line", "read", "read_jsonl", "write", "write_json", "write_jsonl", "write_lines",
]  # fmt: skip
