"""What the site itself keeps: users' second factors."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django_otp.models import Device, ThrottlingMixin


class SecondFactor(ThrottlingMixin, Device):  # type: ignore[misc]  # django-otp ships no types
    """A user's authenticator app, from the moment a code of it was given. django-otp's own would keep its secret plain.

    Failures make the next try wait: 1 s, 2, 4, 8, …, from wherever they come.
    """

    name = None
    confirmed = None
    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="second_factor")
    secret = models.TextField()
    """Base32, encrypted under HOPBASE_ENCRYPTION_KEYS."""
    since = models.DateTimeField()
    last_step = models.BigIntegerField(default=-1)
    """The step of 30 s whose code was accepted last: only later ones are."""

    objects: models.Manager[SecondFactor] = models.Manager()

    class Meta:
        default_permissions = ()  # the admin shows no rows of it

    def __str__(self) -> str:
        return f"second factor of user {self.user_id}"

    def get_throttle_factor(self) -> int:
        """Seconds to wait after the first failure."""
        return 1


class RecoveryCode(models.Model):
    """A code for when the app is away, kept as an HMAC; a used one is gone."""

    factor = models.ForeignKey(SecondFactor, on_delete=models.CASCADE, related_name="recovery_codes")
    digest = models.CharField(max_length=64)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"recovery code {self.pk}"
