"""Words of Unfold's templates, which come without translations: named here so that `makemessages` finds them."""

from django.utils.translation import gettext_noop

UNFOLD_WORDS = (
    gettext_noop("Select record"),
    gettext_noop("Select action"),
    gettext_noop("Value"),
    gettext_noop("From"),
    gettext_noop("To"),
    gettext_noop("Date from"),
    gettext_noop("Date to"),
    gettext_noop("Date"),
    gettext_noop("Add new item"),
    gettext_noop("Add row"),
    gettext_noop("Select action to run"),
    gettext_noop(
        "Raw passwords are not stored, so there is no way to see this user’s password, but you can change the password "
        'using <a href="{}" class="text-primary-600 dark:text-primary-500">this form</a>.'
    ),
    gettext_noop("Select value"),
    gettext_noop("Run"),
    gettext_noop("After you've created a user, you’ll be able to edit more user options."),
    gettext_noop("Expand row"),
    gettext_noop("Welcome back to"),
    gettext_noop("Forgotten your password or username?"),
    gettext_noop("Type to search"),
    gettext_noop("You have been successfully logged out from the administration"),
    gettext_noop("No data"),
    gettext_noop("More actions"),
    gettext_noop("All applications"),
    gettext_noop("True"),
    gettext_noop("False"),
    gettext_noop("Filters"),
    gettext_noop(" By %(filter_title)s "),
    gettext_noop("Apply Filters"),
    gettext_noop("Select all rows"),
    gettext_noop("Submit"),
    gettext_noop("This item will be deleted."),
    gettext_noop("Go back"),
    gettext_noop("Previous"),
    gettext_noop("Next"),
    gettext_noop("General"),
    gettext_noop("Light"),
    gettext_noop("Dark"),
    gettext_noop("Return to site"),
    gettext_noop("Toggle password visibility"),
    gettext_noop("No results matching your query"),
)
