"""Credit notes: what issued invoices are owed less."""

import django.db.models.deletion
import django.db.models.expressions
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0006_adjustments_by_hand'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='CreditNote',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.CharField(max_length=20, unique=True, verbose_name='number')),
                ('invoice_number', models.CharField(max_length=20, verbose_name='invoice number')),
                ('currency', models.CharField(max_length=3, verbose_name='currency')),
                ('subtotal_nanos', models.BigIntegerField(verbose_name='subtotal')),
                ('tax_rate_ppm', models.PositiveIntegerField(default=0, verbose_name='tax rate (millionths)')),
                ('tax_nanos', models.BigIntegerField(default=0, verbose_name='tax')),
                ('total_nanos', models.BigIntegerField(verbose_name='total')),
                ('line_count', models.PositiveIntegerField(verbose_name='lines')),
                ('reason', models.CharField(max_length=300, verbose_name='reason')),
                ('after_payment', models.BooleanField(default=False, verbose_name='to be paid back')),
                ('seller_name', models.CharField(blank=True, max_length=200, verbose_name='seller')),
                ('seller_address', models.TextField(blank=True, verbose_name="seller's address")),
                ('seller_tax_id', models.CharField(blank=True, max_length=64, verbose_name="seller's tax id")),
                ('account_name', models.CharField(max_length=100, verbose_name='account name')),
                ('key_name', models.CharField(max_length=100, verbose_name='key name')),
                ('legal_name', models.CharField(blank=True, max_length=200, verbose_name='legal name')),
                ('address', models.TextField(blank=True, verbose_name='address')),
                ('tax_id', models.CharField(blank=True, max_length=64, verbose_name='tax id')),
                ('language', models.CharField(default='en', max_length=10, verbose_name='language')),
                ('issued_at', models.DateTimeField(verbose_name='issued')),
                ('issued_on', models.DateField(verbose_name='date')),
            ],
            options={
                'verbose_name': 'credit note',
                'verbose_name_plural': 'credit notes',
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='CreditNoteLine',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('position', models.PositiveIntegerField(verbose_name='position')),
                ('description', models.CharField(max_length=300, verbose_name='description')),
                ('amount_nanos', models.BigIntegerField(verbose_name='amount')),
            ],
            options={
                'verbose_name': 'credit note line',
                'verbose_name_plural': 'credit note lines',
                'ordering': ['position'],
            },
        ),
        migrations.AddField(
            model_name='creditnote',
            name='account',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credit_notes', to='billing.account', verbose_name='account'),
        ),
        migrations.AddField(
            model_name='creditnote',
            name='invoice',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='credit_notes', to='billing.invoice', verbose_name='invoice'),
        ),
        migrations.AddField(
            model_name='creditnote',
            name='made_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='by'),
        ),
        migrations.AddField(
            model_name='creditnoteline',
            name='credit_note',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='lines', to='billing.creditnote', verbose_name='credit note'),
        ),
        migrations.AddField(
            model_name='creditnoteline',
            name='invoice_line',
            field=models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='credit_note_line', to='billing.invoiceline', verbose_name='invoice line'),
        ),
        migrations.AddConstraint(
            model_name='creditnote',
            constraint=models.CheckConstraint(condition=models.Q(('subtotal_nanos__gte', 0), ('tax_nanos__gte', 0), ('total_nanos__gt', 0), ('total_nanos', django.db.models.expressions.CombinedExpression(models.F('subtotal_nanos'), '+', models.F('tax_nanos')))), name='credit_note_adds_up'),
        ),
        migrations.AddConstraint(
            model_name='creditnoteline',
            constraint=models.UniqueConstraint(fields=('credit_note', 'position'), name='line_position_once_per_note'),
        ),
    ]
