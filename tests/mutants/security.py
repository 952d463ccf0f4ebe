"""TLS, SASL and credentials: what must not be served, and limits of clients that are not authenticated."""

from tests.mutants.mutant import Mutant

_SASL = "broker/security/test_sasl.py::"
_MECHANISMS = "broker/security/test_sasl_mechanisms.py::"
_TLS = "broker/security/test_tls.py::"
_NEWCOMERS = "broker/network/test_newcomers.py::"
_GATE = "broker/handlers/authentication.py"
_TLS_SOCKET = "broker/network/tls_connection.py"

MUTANTS = (
    Mutant(
        _GATE,
        "            elif login.ends_at is not None and now > login.ends_at:",
        "            elif login.ends_at is not None and now > 2 * login.ends_at:",
        _SASL + "test_a_session_ends_without_new_login",
    ),
    Mutant(
        _GATE,
        "now - login.began_at >= REAUTHENTICATION_SECONDS_MIN",
        "now >= login.began_at",
        _SASL + "test_a_client_authenticates_again",
    ),
    Mutant(
        _GATE,
        "        if login.principal is not None and login.principal != principal:",
        "        if login.principal is not None and login.principal == principal:",
        _SASL + "test_a_new_login_keeps_user_and_mechanism",
    ),
    Mutant(
        _GATE,
        "        login.state = State.FAILED\n        reply.is_long_wait = True\n",
        "        login.state = State.DONE\n",
        _SASL + "test_requests_sent_ahead_are_not_served",
    ),
    Mutant(
        _GATE,
        "        elif header.api.key == apis.SASL_AUTHENTICATE and login.state == State.AUTHENTICATE:",
        "        elif header.api.key == apis.METADATA:\n"
        "            self._handle(frame, reply, connection)\n"
        "        elif header.api.key == apis.SASL_AUTHENTICATE and login.state == State.AUTHENTICATE:",
        _SASL + "test_every_api_waits_for_authentication",
    ),
    Mutant(
        "broker/security/sasl.py",
        "            nonce not in (self._nonce, self._client_nonce + self._nonce)\n            or base64",
        "            base64",
        _MECHANISMS + "test_the_nonce_is_the_exchanges_own",
    ),
    Mutant(
        "broker/security/sasl.py",
        "        _check_identity(identity, user)\n        self.user = user",
        "        self.user = user",
        _MECHANISMS + "test_plain",
    ),
    Mutant(
        "broker/security/sasl.py",
        "not hmac.compare_digest(stored_key, credential.stored_key)",
        "not stored_key",
        _MECHANISMS + "test_scram_refuses_without_saying_why",
    ),
    Mutant(
        "broker/network/tls_connection.py",
        "            self._loop.call_soon(self._read_unread)",
        "            self._is_reading_scheduled = False",
        _TLS + "test_a_record_larger_than_the_buffer",
    ),
    Mutant(
        "broker/security/tls.py",
        "    context.verify_mode = CLIENT_AUTH[security.client_auth]",
        "    context.verify_mode = ssl.CERT_NONE",
        _TLS + "test_a_client_without_certificate_is_refused",
    ),
    Mutant(
        "broker/security/tls.py",
        "    if now > certificate.valid_until:",
        "    if now < certificate.valid_from:",
        _TLS + "test_what_cannot_be_used_is_refused",
    ),
    Mutant(
        "broker/network/newcomers.py",
        "                if newcomer in self._began_at:\n                    step()\n                    return",
        "                if newcomer in self._began_at:\n                    step()",
        _NEWCOMERS + "test_one_step_runs_in_a_turn",
    ),
    Mutant(
        "broker/network/newcomers.py",
        "            next(iter(self._began_at)).close(None)",
        "            newcomer.close(None)",
        _NEWCOMERS + "test_number_and_time_are_limited",
    ),
    Mutant(
        "broker/network/incoming.py",
        "    if LOGIN_BYTES_MIN <= size_bytes <= config.login_bytes_max:",
        "    if LOGIN_BYTES_MIN <= size_bytes:",
        _SASL + "test_large_frames_wait_for_authentication",
    ),
    Mutant(
        "broker/settings/listener_settings.py",
        '        own = {"client_auth": "none"} | own',
        "        own = dict(own)",
        "broker/settings/test_table.py::test_client_auth_of_sasl_needs_the_prefix",
    ),
    Mutant(
        _TLS_SOCKET,
        "                    if received_bytes >= RECORD_BYTES_MAX:",
        "                    if not buffer:",
        "broker/network/test_tls_socket.py::test_endless_key_updates_end_the_connection",
    ),
    Mutant(
        _TLS_SOCKET,
        "for _step in range(STEPS_PER_READ):",
        "for _step in range(10**9):",
        "broker/network/test_tls_socket.py::test_one_turn_reads_some_small_records",
    ),
    Mutant(
        "broker/network/request_memory.py",
        "self._memory.newcomers if self.is_newcomers else ",
        "",
        "broker/network/test_request_memory.py::test_newcomers_lock_out_only_each_other",
    ),
    Mutant(
        "broker/network/request_memory.py",
        "self._move(share, share.main, self.request_bytes, is_for_one=True)",
        "self._move(share, share.main, self.request_bytes)",
        "broker/network/test_request_memory.py::test_frames_of_any_size_complete",
    ),
    Mutant(
        "broker/network/incoming.py",
        "    return 4 + max(config",
        "    return max(config",
        "broker/network/test_request_memory.py::test_steps_leave_enough_for_any_request",
    ),
    Mutant(
        "broker/network/newcomer_connection.py",
        "        super().admit(principal)\n        if self._is_reading:",
        "        super().admit(principal)\n        if False:",
        "broker/security/test_sasl.py::test_pipelined_login",
    ),
    Mutant(
        "broker/network/connection.py",
        "        if self.reservation.is_for_one:\n            end =",
        "        if False:\n            end =",
        "broker/network/test_request_memory.py::test_pipelined_requests_complete",
    ),
    Mutant(
        "broker/network/request.py",
        "            self.timed(work),",
        "            work,",
        "broker/security/test_quotas.py::test_all_time_of_a_request_counts",
    ),
    Mutant(
        "broker/security/principal_rules.py",
        "re.compile(match[1], re.ASCII)",
        "re.compile(match[1])",
        "broker/security/test_principal_rules.py::test_the_first_matching_rule_applies",
    ),
    Mutant(
        "log/directory.py",
        "os.makedirs(path, mode=OWNER_ONLY, exist_ok=True)",
        "os.makedirs(path, exist_ok=True)",
        "log/test_directory.py::test_new_directory_is_its_owners",
    ),
    Mutant(
        "cli/logs.py",
        "record.message.translate(CONTROL_CHARACTERS)",
        "record.message",
        "cli/test_logs.py::test_a_message_is_one_line",
    ),
    Mutant(
        "dashboard/login.py",
        "        self._failures.add(client)\n        if self._waiting < WAITING_MAX:",
        "        if self._waiting < WAITING_MAX:",
        "dashboard/test_login.py::test_failed_attempts_wait",
    ),
)
