"""Settings, all from the environment or `.env`; docs/operations/settings.md says what each does."""

from __future__ import annotations

import datetime as dt
import sys
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

from kombu.entity import Exchange, Queue

from hopbase_site import environment
from hopbase_site.navigation import UNFOLD as UNFOLD
from hopbase_site.release import USER_AGENT as USER_AGENT

BASE_DIR = Path(__file__).resolve().parent.parent
environment.load(BASE_DIR / ".env")

DEFAULT_SECRET = "insecure-for-development-only"  # noqa: S105 - refused in production, see hopbase_site.checks
DEFAULT_ENCRYPTION_KEY = "aG9wYmFzZS1kZXZlbG9wbWVudC1rZXktMzItYnl0ZXM="

DEBUG = environment.flag("DEBUG", False)
SECRET_KEY = environment.text("SECRET_KEY", DEFAULT_SECRET)
ALLOWED_HOSTS = environment.items("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])

# --- HopBase ---
VAR_DIR = Path(environment.text("HOPBASE_VAR_DIR", str(BASE_DIR / "var"))).absolute()
ENCRYPTION_KEYS = environment.items("HOPBASE_ENCRYPTION_KEYS", [DEFAULT_ENCRYPTION_KEY])
KEY_PEPPER = environment.text("HOPBASE_KEY_PEPPER", DEFAULT_SECRET)
TRUSTED_PROXIES = environment.networks("HOPBASE_TRUSTED_PROXIES")
METRICS_NETWORKS = environment.networks("HOPBASE_METRICS_NETWORKS")
KEEPALIVE_S = environment.seconds("HOPBASE_KEEPALIVE_S", 10.0)
KEEPALIVE_BEFORE_HEADERS_S = environment.seconds("HOPBASE_KEEPALIVE_BEFORE_HEADERS_S", 10.0)
STALL_RANGE_S = environment.bounds("HOPBASE_STALL_RANGE_S", (90, 150))
CONNECT_TIMEOUT_S = environment.seconds("HOPBASE_CONNECT_TIMEOUT_S", 10.0)
MAX_ATTEMPTS = environment.count("HOPBASE_MAX_ATTEMPTS", 3)
MAX_BODY_BYTES = environment.count("HOPBASE_MAX_BODY_BYTES", 32 * 1024 * 1024)
MAX_EVENT_BYTES = environment.count("HOPBASE_MAX_EVENT_BYTES", 8 * 1024 * 1024)
MAX_ANSWER_BYTES = environment.count("HOPBASE_MAX_ANSWER_BYTES", 64 * 1024 * 1024)
BODIES_BYTES = environment.count("HOPBASE_BODIES_BYTES", 512 * 1024 * 1024)
BODY_TIMEOUT_S = environment.seconds("HOPBASE_BODY_TIMEOUT_S", 30.0)
CHECKPOINT_S = environment.seconds("HOPBASE_CHECKPOINT_S", 2.0)
DRAIN_S = environment.seconds("HOPBASE_DRAIN_S", 120.0)
LEASE_S = environment.seconds("HOPBASE_LEASE_S", 60.0)
SLOW_READER_S = environment.seconds("HOPBASE_SLOW_READER_S", 60.0)
ALARM_WEBHOOK_URL = environment.web_address("HOPBASE_ALARM_WEBHOOK_URL")
ALARM_WEBHOOK_SECRET = environment.text("HOPBASE_ALARM_WEBHOOK_SECRET", "")
PUBLIC_URL = environment.site_address("HOPBASE_PUBLIC_URL", "http://127.0.0.1:8000")
SELLER = {
    "name": environment.text("HOPBASE_SELLER_NAME", "", longest=200),
    "address": environment.text("HOPBASE_SELLER_ADDRESS", ""),
    "tax_id": environment.text("HOPBASE_SELLER_TAX_ID", "", longest=64),
    "zone": environment.zone("HOPBASE_SELLER_ZONE"),
}
RECORDS_KEEP_MONTHS = environment.months("HOPBASE_RECORDS_KEEP_MONTHS")
RECORDS_ARCHIVE = environment.folder(
    "HOPBASE_RECORDS_ARCHIVE", needed_by="HOPBASE_RECORDS_KEEP_MONTHS" if RECORDS_KEEP_MONTHS else ""
)
APPROVAL_ABOVE = environment.amount("HOPBASE_APPROVAL_ABOVE", Decimal(100))

# --- Storage ---
DATABASE_URL = environment.text("DATABASE_URL", f"sqlite:///{VAR_DIR / 'hopbase.sqlite3'}")
REDIS_URL = environment.redis_address("REDIS_URL")
"""Empty: `manage.py serve` starts the embedded Valkey on a socket under VAR_DIR."""
VALKEY_URL = REDIS_URL or f"unix://{VAR_DIR / 'valkey.sock'}"

CLICKHOUSE_URL = environment.web_address("HOPBASE_CLICKHOUSE_URL")
CLICKHOUSE_USER = environment.text("HOPBASE_CLICKHOUSE_USER", "")
CLICKHOUSE_PASSWORD = environment.text("HOPBASE_CLICKHOUSE_PASSWORD", "")

DATABASES = {"default": environment.database(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Django ---
INSTALLED_APPS = [
    *(["daphne"] if "runserver" in sys.argv[1:2] else []),  # it is that command, and brings Twisted with it
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "django.contrib.admin.apps.SimpleAdminConfig",  # hopbase_site.urls finds the pages: who serves none loads none
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "axes",
    "billing",
    "streaming",
    "hopbase_site",
]
MIDDLEWARE = [
    "hopbase_site.proxies.believed_scheme",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "hopbase_site.acting.acting_user",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "hopbase_site.second_factor.gate.SecondFactorGate",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "hopbase_site.urls"
ASGI_APPLICATION = "hopbase_site.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hant", "繁體中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]
STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
WHITENOISE_USE_FINDERS = True
# Static files come straight from the packages; `collectstatic` may, but need not, have made its folder.
warnings.filterwarnings("ignore", message="No directory at", category=UserWarning)
X_FRAME_OPTIONS = "DENY"
LOGIN_URL, LOGIN_REDIRECT_URL = "admin:login", "admin:index"

# --- Who may log in, for how long, and over what ---
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "hopbase_site.second_factor.gate.UserBackend"]
REQUIRE_SECOND_FACTOR = environment.flag("HOPBASE_REQUIRE_SECOND_FACTOR", False)
AXES_HANDLER = "hopbase_site.login_throttle.LoginThrottle"
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"], "ip_address"]  # in the order that LoginThrottle takes apart
AXES_FAILURE_LIMIT = 5
LOGIN_FAILURES_OF_A_PLACE = 20
AXES_COOLOFF_TIME = dt.timedelta(minutes=15)
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # what is refused unread tells nothing, and is not kept either
AXES_RESET_ON_SUCCESS = True
AXES_CLIENT_IP_CALLABLE = "hopbase_site.proxies.source_of"
AXES_USERNAME_CALLABLE = "hopbase_site.login_throttle.name_of"
AXES_LOCKOUT_CALLABLE = "hopbase_site.login_throttle.locked_page"
AXES_SENSITIVE_PARAMETERS = ["username"]  # now and then a password is typed there; the address may be logged
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = AXES_VERBOSE = False
HTTPS = PUBLIC_URL.startswith("https://")
SESSION_COOKIE_AGE = 12 * 60 * 60
"""Requests do not prolong it: a page that asks every 2 s would else keep its session for ever."""
SESSION_EXPIRE_AT_BROWSER_CLOSE = True
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"  # Strict would ask who follows a link to log in again
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
CSRF_TRUSTED_ORIGINS = ["/".join(PUBLIC_URL.split("/")[:3])]
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = 365 * 24 * 60 * 60 if HTTPS else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
# The proxy redirects to https, for the API too; other hosts of its domain are not ours to bind (HSTS).
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W008", "security.W021"]

# --- Celery: the database is the record, the broker only a hint ---
QUICK, LONG = "celery", "long"
"""A worker takes both, unless -Q names one: what takes minutes should not keep sweeps, roll-ups and alarms waiting."""
CELERY_TASK_QUEUES = [
    Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]
    for name in (QUICK, LONG)
]
CELERY_TASK_CREATE_MISSING_QUEUES = False
CELERY_TASK_ROUTES = {
    "billing.tasks.sweep": {"queue": QUICK},
    "billing.tasks.rebuild_rollups": {"queue": QUICK},
    "billing.tasks.make_partitions": {"queue": QUICK},
    "billing.tasks.ship_records": {"queue": LONG},
    "billing.tasks.drop_records": {"queue": LONG},
    "streaming.tasks.watch_alarms": {"queue": QUICK},
    "streaming.tasks.tell_alarm": {"queue": QUICK},
    "hopbase_site.tasks.forget_logins": {"queue": QUICK},
    "billing.tasks.run_export": {"queue": LONG},
    "billing.tasks.tend_exports": {"queue": LONG},  # it runs what was left lying
    "billing.tasks.run_invoices": {"queue": LONG},
    "billing.tasks.tend_invoices": {"queue": LONG},
    "billing.tasks.draft_month": {"queue": LONG},
    "billing.tasks.fit_count_factors": {"queue": LONG},
}
CELERY_BROKER_URL = REDIS_URL or f"redis+socket://{VAR_DIR / 'valkey.sock'}"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(VAR_DIR / "celerybeat-schedule")

LOG_FORMAT = environment.choice("HOPBASE_LOG_FORMAT", ("console", "json"))
TRACES_ENDPOINT = environment.web_address("OTEL_EXPORTER_OTLP_ENDPOINT")
SENTRY_DSN = environment.text("HOPBASE_SENTRY_DSN", "")
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "console": {"()": "hopbase_site.logs.ConsoleFormatter"},
        "json": {"()": "hopbase_site.logs.JsonFormatter"},
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        # Their lines hold URLs and headers, and so credentials and provider addresses.
        **{
            name: {"level": "WARNING"}
            for name in ("httpx", "httpcore", "aiohttp", "urllib3", "asyncio", "sentry_sdk", "opentelemetry")
        },
        "django": {"handlers": []},  # with DEBUG, Django's own would write each line once more
        "axes": {"level": "WARNING"},  # failures and locks, not each login
    },
}
