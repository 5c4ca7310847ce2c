"""The order of routes, and what follows a failure."""

import random

import pytest

from streaming.errors import Failure
from streaming.routes import Plan, ordered
from tests.streaming.entries import model, provider, route


def first(routes, weights):
    return routes[0]


def test_lower_priority_comes_first():
    late, early = route(1, priority=5), route(2, priority=1)
    assert ordered(model(late, early), "messages", first) == [early, late]


def test_other_wire_formats_are_left_out():
    able, unable = route(1), route(2, wire_formats=frozenset({"responses"}))
    assert ordered(model(able, unable), "messages", first) == [able]


def test_weights_draw_within_priority():
    heavy, light = route(1, weight=9), route(2, weight=1)
    dice = random.Random(7)
    firsts = [
        ordered(model(heavy, light), "messages", lambda routes, weights: dice.choices(routes, weights)[0])[0]
        for _ in range(1000)
    ]
    assert 850 < firsts.count(heavy) < 950


def plan_of(*routes, attempts=3):
    plan = Plan(routes, attempts)
    return plan, plan.first()


@pytest.mark.parametrize(
    "kind", ["failed", "overloaded", "timed_out", "unreachable", "rate_limited", "account", "refused"]
)
def test_failure_goes_to_next_route(kind):
    one, two = route(1), route(2)
    plan, taken = plan_of(one, two)
    assert taken is one
    assert plan.after(one, Failure(kind, "x")) == (two, 0.0)


def test_budget_ends_attempts():
    routes = [route(at) for at in range(1, 6)]
    plan, taken = plan_of(*routes)
    tried = [taken]
    while (following := plan.after(tried[-1], Failure("failed", "x"))) is not None:
        tried.append(following[0])
    assert tried == routes[:3]


def test_lone_route_is_asked_once_more():
    one = route(1)
    plan, _ = plan_of(one)
    failure = Failure("failed", "status 500", stays=True)
    assert plan.after(one, failure) == (one, 0.0)
    assert plan.after(one, failure) is None


def test_silent_route_is_not_asked_again():
    plan, taken = plan_of(route(1))
    assert plan.after(taken, Failure("timed_out", "stalled")) is None


def test_short_rate_limit_is_waited_for():
    one, two = route(1), route(2)
    plan, _ = plan_of(one, two)
    assert plan.after(one, Failure("rate_limited", "429", retry_after_s=1.5)) == (one, 1.5)
    assert plan.after(one, Failure("rate_limited", "429", retry_after_s=1.5)) == (two, 0.0)


def test_long_rate_limit_goes_on():
    one, two = route(1), route(2)
    plan, _ = plan_of(one, two)
    assert plan.after(one, Failure("rate_limited", "429", retry_after_s=20)) == (two, 0.0)


def test_refusal_skips_the_same_provider():
    same = provider(1)
    one, twin, other = route(1, provider=same), route(2, provider=same), route(3)
    plan, _ = plan_of(one, twin, other)
    assert plan.after(one, Failure("refused", "400")) == (other, 0.0)


def test_final_failure_ends_the_request():
    one, two = route(1), route(2)
    plan, _ = plan_of(one, two)
    assert plan.after(one, Failure("refused", "context length", final=True)) is None


def test_refused_stream_options_ask_the_same_route():
    one, two = route(1), route(2)
    plan, _ = plan_of(one, two)
    assert plan.after(one, Failure("stream_options", "400")) == (one, 0.0)


def test_no_route_no_attempt():
    assert Plan([], 3).first() is None
