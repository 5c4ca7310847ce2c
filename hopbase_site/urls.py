"""Django's URLs: the admin, its own pages beside the models'. The API's routes are in `streaming.routing`."""

from django.contrib import admin
from django.urls import include, path

from billing.admin import pages

admin.autodiscover()
site_urls, app_name, namespace = admin.site.urls

urlpatterns = [
    path("admin/i18n/", include("django.conf.urls.i18n")),
    path("admin/", ([*pages.urls(), *site_urls], app_name, namespace)),
]
