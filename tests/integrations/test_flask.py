"""The Flask extension: errors become answers, for any view."""

from __future__ import annotations

import functools
import os

import pytest
from flask import Flask, current_app
from flask.views import MethodView

from pyresil import (
    BulkheadFullError,
    CircuitOpenError,
    ConfigurationError,
    Constant,
    LockNotAcquiredError,
    Policy,
    RateLimit,
    RateLimitedError,
    Registry,
    Retry,
    StoreUnavailableError,
    TimeoutExceededError,
    TimeoutSaturatedError,
    bulkhead,
    rate_limit,
    retry,
)
from pyresil.integrations.flask import Pyresil


def app_raising(error, **options):
    app = Flask("shop")
    Pyresil(app, **options)

    @app.get("/")
    def view():
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "status", "code", "text", "retry_after"),
    [
        (TimeoutExceededError(2.0), 504, "TIMEOUT", "The operation timed out", None),
        (CircuitOpenError(12.2), 503, "CIRCUIT_OPEN", "Service temporarily unavailable", "13"),
        (CircuitOpenError(0.0), 503, "CIRCUIT_OPEN", "Service temporarily unavailable", "1"),
        (CircuitOpenError(None), 503, "CIRCUIT_OPEN", "Service temporarily unavailable", None),
        (BulkheadFullError(), 503, "BULKHEAD_FULL", "Server is at capacity", None),
        (RateLimitedError(3.0), 503, "RATE_LIMITED", "Rate limit of a dependency exceeded", "3"),
        (TimeoutSaturatedError(32), 503, "TIMEOUT_SATURATED", "Service temporarily unavailable", None),
        (
            StoreUnavailableError("redis at secret:6379"),
            503,
            "STORE_UNAVAILABLE",
            "Service temporarily unavailable",
            None,
        ),
    ],
)
def test_an_error_becomes_an_answer(error, status, code, text, retry_after):
    response = app_raising(error).test_client().get("/")
    assert response.status_code == status
    assert response.mimetype == "application/problem+json"
    body = response.get_json()
    assert (body["code"], body["detail"], body["status"]) == (code, text, status)
    assert "secret" not in response.text
    assert response.headers.get("Retry-After") == retry_after


def test_lock_errors_are_left_to_the_view():
    app = app_raising(LockNotAcquiredError("export"))
    app.testing = True
    client = app.test_client()
    with pytest.raises(LockNotAcquiredError):
        client.get("/")


def test_mapping_can_be_turned_off():
    app = app_raising(TimeoutExceededError(1.0), map_errors=False)
    assert app.test_client().get("/").status_code == 500


def test_the_config_key_wins():
    app = Flask("shop")
    app.config["PYRESIL_MAP_ERRORS"] = False
    Pyresil(app)

    @app.get("/")
    def view():
        raise TimeoutExceededError(1.0)

    assert app.test_client().get("/").status_code == 500


def test_the_applications_own_handler_wins():
    app = app_raising(TimeoutExceededError(1.0))
    app.register_error_handler(TimeoutExceededError, lambda error: ("mine", 418))
    response = app.test_client().get("/")
    assert (response.status_code, response.text) == (418, "mine")


def test_init_app_serves_several_applications():
    extension = Pyresil()
    for name in ("one", "two"):
        app = Flask(name)
        extension.init_app(app)
        assert app.extensions["pyresil"] is extension


def test_twice_is_refused():
    app = Flask("shop")
    Pyresil(app)
    with pytest.raises(ConfigurationError, match="application 'shop' is set up already"):
        Pyresil(app)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"app": Registry(), "map_errors": 1}, "app must be a Flask application .*; map_errors must be True"),
        ({"registry": "x"}, "registry must be a Registry or None, got 'x'"),
        ({"idempotency": "x"}, "idempotency must be None"),
        (
            {"errors": True, "map_errors": 1},
            "map_errors must be .*; no option 'errors' .*known are app, registry",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Pyresil(**options)


def test_what_is_no_application_is_refused():
    with pytest.raises(ConfigurationError, match="app must be a Flask application, got None"):
        Pyresil().init_app(None)


def test_the_application_may_come_through_flasks_proxy():
    app = Flask("shop")
    with app.app_context():
        Pyresil().init_app(current_app)
    assert "pyresil" in app.extensions


def test_a_wrong_config_value_is_named():
    app = Flask("shop")
    app.config["PYRESIL_MAP_ERRORS"] = "no"
    with pytest.raises(ConfigurationError, match="PYRESIL_MAP_ERRORS must be True or False, got 'no'"):
        Pyresil(app)


def test_an_unknown_config_key_is_named_with_all_other_faults():
    app = Flask("shop")
    app.config.update(PYRESIL_MAP_ERROR="secret", PYRESIL_MAP_ERRORS=1)
    with pytest.raises(ConfigurationError) as caught:
        Pyresil(app)
    assert "PYRESIL_MAP_ERRORS must be True or False, got 1" in str(caught.value)
    assert "no config key 'PYRESIL_MAP_ERROR'; known is PYRESIL_MAP_ERRORS" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "pyresil" not in app.extensions


def test_a_config_loaded_from_the_environment_may_have_its_variables(monkeypatch):
    for name in ("STORE", "LOCK_KEY", "LOCK_TOKEN", "LOCK_OWNER", "LOCK_TTL"):
        monkeypatch.setenv(f"PYRESIL_{name}", "1")
    app = Flask("shop")
    app.config.from_mapping(os.environ)
    Pyresil(app)


def test_a_decorated_view_rejects_with_an_answer():
    app = Flask("shop")
    Pyresil(app)
    inner = app.test_client()

    @app.get("/export")
    @bulkhead(max_concurrent=1)
    def export():
        return inner.get("/export").get_json()

    body = app.test_client().get("/export").get_json()
    assert body["code"] == "BULKHEAD_FULL"


def counting_app(decorator):
    app = Flask("shop")
    Pyresil(app)
    calls = []

    @app.route("/", methods=["GET", "POST"])
    @decorator
    def view():
        calls.append(1)
        raise ConnectionError("down")

    return app.test_client(), calls


NOW = Constant("0s")


def of_pyresil(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "pyresil"]


@pytest.mark.parametrize(("method", "runs"), [("GET", 3), ("HEAD", 3), ("POST", 1)])
def test_a_retry_reruns_a_view_for_safe_methods_only(method, runs, caplog):
    client, calls = counting_app(retry(attempts=3, backoff=NOW))
    assert client.open("/", method=method).status_code == 500
    assert len(calls) == runs
    (warning,) = of_pyresil(caplog)
    assert "view 'view': @retry reruns it for GET, HEAD and OPTIONS only" in warning
    assert "POST" in warning


def test_a_view_that_is_idempotent_is_rerun_for_every_method(caplog):
    client, calls = counting_app(retry(attempts=3, backoff=NOW, idempotent=True))
    client.post("/")
    assert len(calls) == 3
    assert not of_pyresil(caplog)


def test_a_presets_retry_is_skipped_silently(caplog):
    registry = Registry(presets={"api": {"retry": {"attempts": 3, "backoff": NOW}}})
    client, calls = counting_app(registry.resilience("api"))
    client.post("/")
    assert len(calls) == 1
    client.get("/")
    assert len(calls) == 4
    assert not of_pyresil(caplog)


def test_idempotent_is_refused_in_a_preset():
    with pytest.raises(ConfigurationError, match="has no option 'idempotent'"):
        Registry(presets={"api": {"retry": {"idempotent": True}}})
    with pytest.raises(ConfigurationError, match="idempotent must be True or False, got 1"):
        retry(idempotent=1)


def test_what_a_view_calls_is_retried_whatever_the_method():
    app = Flask("shop")
    Pyresil(app)
    calls = []

    @retry(attempts=3, backoff=NOW)
    def upstream():
        calls.append(1)
        raise ConnectionError("down")

    @app.post("/")
    def view():
        upstream()

    app.test_client().post("/")
    assert len(calls) == 3


def test_a_class_based_view_is_held_to_it_too():
    app = Flask("shop")
    Pyresil(app)
    calls = []

    class Orders(MethodView):
        @retry(attempts=3, backoff=NOW)
        def post(self):
            calls.append(1)
            raise ConnectionError("down")

    app.add_url_rule("/", view_func=Orders.as_view("orders"))
    app.test_client().post("/")
    assert len(calls) == 1


class Orders:
    """Views that are no plain functions."""

    def __init__(self):
        self.calls = []

    @retry(attempts=3, backoff=NOW)
    def create(self):
        self.calls.append(1)
        raise ConnectionError("down")

    __call__ = create

    @rate_limit("1/minute")
    def show(self):
        return "one"


@pytest.mark.parametrize(
    "view", [lambda made: made.create, lambda made: functools.partial(made.create), lambda made: made]
)
def test_a_view_that_is_a_method_is_held_to_it_too(view):
    app = Flask("shop")
    Pyresil(app)
    made = Orders()
    app.add_url_rule("/", "create", view(made), methods=["GET", "POST"])
    app.test_client().post("/")
    assert len(made.calls) == 1
    app.test_client().get("/")
    assert len(made.calls) == 4


def test_a_methods_own_limit_is_its_own():
    app = Flask("shop")
    Pyresil(app)
    app.add_url_rule("/", view_func=Orders().show)
    client = app.test_client()
    client.get("/")
    assert client.get("/").status_code == 429


def test_a_retry_that_views_of_two_applications_share_is_held_to_it_in_both():
    shared = Retry(3, NOW)
    (one, in_one), (two, in_two) = counting_app(retry(shared)), counting_app(retry(shared))
    for client in (one, two, one):
        client.post("/")
    assert (len(in_one), len(in_two)) == (2, 1)


def test_a_views_own_limit_under_somebody_elses_decorator():
    app = Flask("shop")
    Pyresil(app)

    def login_required(view):
        @functools.wraps(view)
        def wrapper(*args, **kwargs):
            return view(*args, **kwargs)

        return wrapper

    @app.get("/view")
    @login_required
    @rate_limit("1/day")
    def view():
        return "ok"

    class Items(MethodView):
        @rate_limit("1/day")
        def get(self):
            return "ok"

    app.add_url_rule("/class", view_func=Items.as_view("items"))
    unnamed = RateLimit("1/day")

    @app.get("/dependency")
    @rate_limit(RateLimit("100/s"))
    def dependency():
        return Policy(unnamed).call(lambda: "ok")

    client = app.test_client()
    statuses = [
        [client.get(path).status_code for _ in range(2)] for path in ("/view", "/class", "/dependency")
    ]
    assert statuses == [[200, 429], [200, 429], [200, 503]]


def test_a_handler_that_the_application_registered_before_stays():
    app = Flask("shop")
    app.register_error_handler(TimeoutExceededError, lambda error: ("mine", 418))
    Pyresil(app)

    @app.get("/")
    def view():
        raise TimeoutExceededError(1.0)

    assert app.test_client().get("/").status_code == 418


def test_a_retry_after_without_an_end_is_left_out():
    response = app_raising(RateLimitedError(float("inf"))).test_client().get("/")
    assert (response.status_code, response.headers.get("Retry-After")) == (503, None)
