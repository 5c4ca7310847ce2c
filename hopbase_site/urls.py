"""Django's URLs: the admin. The API's own routes are in `streaming.routing`."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
]
