"""ACLs, users and quotas: the part of the metadata that is not about topics."""

from typing import NamedTuple

from onceflow.broker.security.acls import Acls
from onceflow.broker.security.client_quotas import ClientQuotas
from onceflow.broker.security.credentials import Credentials
from onceflow.broker.topics.records import (
    AclRecord,
    ClientQuotaRecord,
    MetadataRecord,
    RemoveAclRecord,
    RemoveUserScramRecord,
    UserScramRecord,
)

SECURITY_RECORDS = (AclRecord, RemoveAclRecord, UserScramRecord, RemoveUserScramRecord, ClientQuotaRecord)


class SecurityState(NamedTuple):
    """State of the broker that handlers read."""

    acls: Acls
    credentials: Credentials
    quotas: ClientQuotas

    def replay(self, record: MetadataRecord) -> bool:
        """Apply one of `SECURITY_RECORDS`; return False for any other record."""
        match record:
            case AclRecord(acl_id, binding):
                self.acls.add(acl_id, binding)
            case RemoveAclRecord(acl_id):
                self.acls.remove(acl_id)
            case UserScramRecord(key, credential):
                self.credentials.replay(key, credential)
            case RemoveUserScramRecord(key):
                self.credentials.replay(key, None)
            case ClientQuotaRecord(entity, key, value):
                self.quotas.set(entity, key, value)
            case _:
                return False
        return True
