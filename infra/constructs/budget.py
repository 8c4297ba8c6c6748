"""The monthly budget of an environment."""

from typing import Final

from aws_cdk import aws_budgets as budgets
from constructs import Construct

from infra.environments import ENVIRONMENT_TAG

# What was spent, and at last what AWS forecasts for the end of the month, in percent of the budget.
_NOTICES: Final = (("ACTUAL", 50), ("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100))


class Budget(Construct):
    """A budget of what has the tag of ``environment``, once the tag is active in billing. It writes to ``email``."""

    def __init__(self, scope: Construct, construct_id: str, *, environment: str, usd: float, email: str) -> None:
        super().__init__(scope, construct_id)
        budgets.CfnBudget(
            self,
            "Monthly",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=usd, unit="USD"),
                cost_filters={"TagKeyValue": [f"user:{ENVIRONMENT_TAG}${environment}"]},
            ),
            notifications_with_subscribers=[
                budgets.CfnBudget.NotificationWithSubscribersProperty(
                    notification=budgets.CfnBudget.NotificationProperty(
                        notification_type=kind,
                        comparison_operator="GREATER_THAN",
                        threshold=percent,
                        threshold_type="PERCENTAGE",
                    ),
                    subscribers=[budgets.CfnBudget.SubscriberProperty(subscription_type="EMAIL", address=email)],
                )
                for kind, percent in _NOTICES
            ],
        )
