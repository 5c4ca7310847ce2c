from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0003_open_stream_progress'),
    ]

    operations = [
        migrations.CreateModel(
            name='CountFactor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('changed_in', models.BigIntegerField(db_index=True, default=0, editable=False, verbose_name='changed in version')),
                ('model', models.CharField(max_length=200, verbose_name='model')),
                ('factor_ppm', models.PositiveIntegerField(verbose_name='count factor')),
                ('records', models.PositiveIntegerField(verbose_name='records')),
                ('fitted_at', models.DateTimeField(verbose_name='since')),
            ],
            options={
                'verbose_name': 'count factor',
                'verbose_name_plural': 'count factors',
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['model', '-id'], name='count_factor_newest')],
            },
        ),
        migrations.AddField(
            model_name='openstream',
            name='count_factor_ppm',
            field=models.PositiveIntegerField(null=True, verbose_name='count factor'),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='count_factor_ppm',
            field=models.PositiveIntegerField(null=True, verbose_name='count factor'),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='text_only',
            field=models.BooleanField(db_default=False, default=False, verbose_name='text only'),
        ),
        migrations.AddIndex(
            model_name='usagerecord',
            index=models.Index(condition=models.Q(('count_factor_ppm__isnull', False), ('text_only', True)), fields=['model', '-ended_at'], name='record_count_sample'),
        ),
    ]
