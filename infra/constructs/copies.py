"""The daily copy of the table and the bucket to another region, by AWS Backup."""

from typing import Final

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_backup as backup
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.constructs.acknowledge import acknowledge

# Backups of a bucket are incremental while an earlier one exists in the same vault, so the first vault keeps two.
_LOCAL_DAYS: Final = 2
_AT: Final = "cron(0 3 * * ? *)"  # in UTC
_START_WITHIN_MINUTES: Final = 60
_POLICIES: Final = ("AWSBackupServiceRolePolicyForBackup", "AWSBackupServiceRolePolicyForS3Backup")


def vault_name(environment: str) -> str:
    """Return the name of the vaults of this environment: that of the copies, and the one where backups are made."""
    return f"spass-{environment}"


class Vault(Construct):
    """A vault that outlives its stack. AWS Backup requires a fixed name for it, with which a later stack can import it."""

    def __init__(self, scope: Construct, construct_id: str, *, environment: str) -> None:
        super().__init__(scope, construct_id)
        self.resource = backup.CfnBackupVault(self, "Vault", backup_vault_name=vault_name(environment))
        self.resource.apply_removal_policy(RemovalPolicy.RETAIN)


class DailyCopies(Construct):
    """A backup of these resources every day, and a copy of it in the vault of the region ``copy_to`` for ``days``."""

    def __init__(
        self, scope: Construct, construct_id: str, *, environment: str, resources: list[str], copy_to: str, days: int
    ) -> None:
        super().__init__(scope, construct_id)
        vault = Vault(self, "Here", environment=environment).resource
        plan = backup.CfnBackupPlan(
            self,
            "Plan",
            backup_plan=backup.CfnBackupPlan.BackupPlanResourceTypeProperty(
                backup_plan_name=vault_name(environment),
                backup_plan_rule=[
                    backup.CfnBackupPlan.BackupRuleResourceTypeProperty(
                        rule_name="daily",
                        target_backup_vault=vault.ref,
                        schedule_expression=_AT,
                        start_window_minutes=_START_WITHIN_MINUTES,
                        lifecycle=backup.CfnBackupPlan.LifecycleResourceTypeProperty(delete_after_days=_LOCAL_DAYS),
                        copy_actions=[
                            backup.CfnBackupPlan.CopyActionResourceTypeProperty(
                                destination_backup_vault_arn=_vault_arn(Stack.of(self), environment, copy_to),
                                lifecycle=backup.CfnBackupPlan.LifecycleResourceTypeProperty(delete_after_days=days),
                            )
                        ],
                    )
                ],
            ),
        )
        backup.CfnBackupSelection(
            self,
            "Selection",
            backup_plan_id=plan.attr_backup_plan_id,
            backup_selection=backup.CfnBackupSelection.BackupSelectionResourceTypeProperty(
                selection_name="stored", iam_role_arn=self._role().role_arn, resources=resources
            ),
        )

    def _role(self) -> iam.Role:
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(
                "backup.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}}
            ),
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(_path(name)) for name in _POLICIES],
        )
        reason = "AWS Backup documents these policies for its role, and changes them when a backup needs more."
        acknowledge(
            role, {f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{_path(name)}]": reason for name in _POLICIES}
        )
        return role


def _path(policy: str) -> str:
    return f"service-role/{policy}" if policy == _POLICIES[0] else policy


def _vault_arn(stack: Stack, environment: str, region: str) -> str:
    return f"arn:{stack.partition}:backup:{region}:{stack.account}:backup-vault:{vault_name(environment)}"
