"""A catalogue of 1,000 tools of an office, and 50 requests in other words than their names."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from genmcp import Suite, tool

# What a tool does: its description, and its parameters besides the id.
VERBS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "create": ("Adds a new {noun}", ("title", "owner")),
    "get": ("Shows the details of a {noun}", ()),
    "list": ("Shows all of kind {noun}, page by page", ("page", "sort_by")),
    "update": ("Changes some fields of a {noun}", ("changes",)),
    "delete": ("Removes a {noun} for good; it cannot be brought back", ("confirm",)),
    "archive": ("Puts a {noun} away, out of sight but kept for the records", ()),
    "restore": ("Brings a {noun} back that was put away", ()),
    "duplicate": ("Makes another {noun} just like an existing one, as a starting point", ()),
    "approve": ("Gives consent to a {noun}, so that it takes effect", ("note",)),
    "reject": ("Turns a {noun} down, and tells its author why", ("reason",)),
    "assign": ("Makes a colleague responsible for a {noun}", ("assignee",)),
    "escalate": ("Hands a {noun} to a manager, because it is urgent or stuck", ("manager",)),
    "export": ("Saves a {noun} as a CSV file to download", ("columns", "format")),
    "import": ("Reads a {noun} from an uploaded CSV file", ("file",)),
    "print": ("Puts a {noun} on paper", ("printer", "copies")),
    "share": ("Lets other people see a {noun} by a link", ("recipients",)),
    "lock": ("Protects a {noun} against any further edits", ()),
    "unlock": ("Permits edits of a protected {noun} again", ()),
    "rename": ("Gives a {noun} another title", ("title",)),
    "merge": ("Joins two of kind {noun} that turned out to be the same one", ("other",)),
    "tag": ("Puts labels on a {noun}, by which it is grouped", ("labels",)),
    "comment": ("Writes a remark below a {noun}, which everybody can read", ("text",)),
    "schedule": ("Sets date and time for a {noun}", ("date", "time")),
    "remind": ("Sends a notice to those concerned before a {noun} is due", ("days_before",)),
    "audit": ("Shows the history of a {noun}: who changed it, and when", ("since",)),
}
# What a tool is about, and what that is.
NOUNS: Mapping[str, str] = {
    "invoice": "a bill that a customer has to pay",
    "quote": "an offer with prices that a customer may accept",
    "customer": "a person or company that buys from us",
    "supplier": "a vendor that we buy material from",
    "employee": "a person who works here, one of the staff",
    "shift": "the working hours of somebody on one day",
    "payslip": "the statement of a monthly salary, with wage and tax",
    "leave_request": "somebody's wish for days off, such as a vacation",
    "expense_report": "costs of a trip that somebody wants to be refunded",
    "contract": "a signed agreement with its terms and its duration",
    "shipment": "parcels on their way to their destination",
    "warehouse": "a building in which goods are stored",
    "stock_item": "an article on a shelf, with its quantity",
    "purchase_order": "goods that we have requested from a vendor",
    "return_case": "goods that a buyer sends back because they are broken or wrong",
    "ticket": "a problem that a user has described to the help desk",
    "server": "a machine in the data centre, with its operating system",
    "backup": "a copy of all data, in case a disk fails",
    "certificate": "the TLS credential of a website, which expires after months",
    "user_account": "a login with a password",
    "role": "a set of permissions, such as administrator",
    "api_key": "a secret token by which programs sign in",
    "meeting": "an appointment of several people in a calendar",
    "room": "a place with chairs and a projector that can be booked",
    "vehicle": "a car or van of the company fleet",
    "parking_space": "a spot in the garage",
    "newsletter": "a mail to everybody who has subscribed",
    "campaign": "advertisements for a period, with a budget",
    "coupon": "a discount code that makes an order cheaper",
    "product_review": "stars and an opinion that a buyer has published",
    "course": "a training in which the staff learns something",
    "candidate": "an applicant for a job, with a CV and interviews",
    "survey": "a questionnaire that is answered by many people",
    "document": "a file with text, such as a policy or a manual",
    "translation": "a text in a foreign language",
    "incident": "an outage of a service, with its severity and its cause",
    "deployment": "a release of software that is rolled out to production",
    "alert_rule": "a threshold at which the person on call is woken up",
    "dataset": "a table of measurements for analysts",
    "dashboard": "charts and figures on one page",
}
# A request of a user, and the tool for it. No word of a request is a word of the tool's name.
REQUESTS: Mapping[str, str] = {
    "write down that a new bill has to be paid by Acme": "create_invoice",
    "get rid of that bill for good": "delete_invoice",
    "send people a notice before their bills are due": "remind_invoice",
    "I need last month's bill on paper": "print_invoice",
    "I consent to the offer with the special prices": "approve_quote",
    "use an existing offer as the starting point for another offer": "duplicate_quote",
    "the company Miller that buys from us is in the system twice, join the two": "merge_customer",
    "put labels on the people who buy from us, say gold and silver": "tag_customer",
    "a vendor has moved, fill in the changes of the address fields": "update_supplier",
    "show me all the vendors we buy material from": "list_supplier",
    "add somebody who works here since Monday to the staff": "create_employee",
    "set the time when Bob's working hours begin on that day": "schedule_shift",
    "who changed the working hours of Tuesday, and when?": "audit_shift",
    "download my salary statements as CSV": "export_payslip",
    "turn down Tom's wish for vacation in May": "rejectLeaveRequest",
    "I consent to Ann's days off": "approveLeaveRequest",
    "make Carla responsible for the travel costs that Jim wants refunded": "assignExpenseReport",
    "consent to refund the costs of my trip": "approveExpenseReport",
    "protect the signed agreement against edits": "lock_contract",
    "the agreement with its terms was put away, bring it back": "restore_contract",
    "let the buyer see by a link where the parcels are on their way": "share_shipment",
    "the parcels are stuck, hand this to my boss, it is urgent": "escalate_shipment",
    "give the building where our goods are stored another title": "rename_warehouse",
    "how many pieces of the article are on the shelf? show me details": "getStockItem",
    "read the quantities of articles from the CSV file I uploaded": "importStockItem",
    "we requested goods from a vendor by mistake, remove that for good": "deletePurchaseOrder",
    "the buyer sends broken goods back, a colleague should take care": "assignReturnCase",
    "write a remark below the problem the user described to the help desk": "comment_ticket",
    "the problem at the help desk is urgent, tell a manager": "escalate_ticket",
    "show all machines in the data centre": "list_server",
    "set a date and time to copy all data in case the disk fails": "schedule_backup",
    "warn us some days before the website's TLS credential expires": "remind_certificate",
    "somebody forgot his password, permit edits of the login again": "unlockUserAccount",
    "add a set of permissions for trainees": "create_role",
    "the secret token of that program leaked, it must be gone for good": "deleteApiKey",
    "set a date for an appointment of six people": "schedule_meeting",
    "which places with a projector can be booked? show all": "list_room",
    "show who changed the data of the van in our fleet": "audit_vehicle",
    "make a colleague responsible for the spot in the garage": "assignParkingSpace",
    "make another mail to subscribers just like the last one": "duplicate_newsletter",
    "change the budget of the advertisements": "update_campaign",
    "a new discount code for cheaper orders": "create_coupon",
    "put the bad opinion with one star away, but keep it for the records": "archiveProductReview",
    "let others see what the staff can learn in the training": "share_course",
    "tell the applicant that we turned him down and why": "reject_candidate",
    "save the answered questionnaires as a CSV file": "export_survey",
    "protect the policy file against further edits": "lock_document",
    "details of the outage: its cause and severity": "get_incident",
    "consent to the release that is rolled out to production tonight": "approve_deployment",
    "add a threshold so that the person on call is woken up": "createAlertRule",
}


def names() -> Iterator[tuple[str, str, str]]:
    """Return the name of each tool, with its verb and its noun."""
    for verb in VERBS:
        for noun in NOUNS:
            # Half of the catalogue's authors write camelCase, if that makes a difference.
            parts = "".join(part.title() for part in noun.split("_"))
            yield (f"{verb}{parts}" if "_" in noun else f"{verb}_{noun}"), verb, noun


def definitions() -> Iterator[dict[str, Any]]:
    """Return the options of `@tool` for each tool."""
    for name, verb, noun in names():
        text, parameters = VERBS[verb]
        words = noun.replace("_", " ")
        yield {
            "name": name,
            "description": f"{text.format(noun=words)}. A {words} is {NOUNS[noun]}.",
            "input_schema": {
                "type": "object",
                "properties": {each: {"type": "string"} for each in ("id", *parameters)},
                "required": ["id"],
            },
        }


@cache
def office() -> Suite:
    """Return a suite of all the tools, each of which returns its name and the id."""

    def made(options: dict[str, Any]) -> object:
        async def call(**arguments: str) -> str:
            return f"{options['name']} {arguments['id']}"

        return tool(**options)(call)

    return Suite(name="office", tools=[made(each) for each in definitions()])
