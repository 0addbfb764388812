"""HTTP between uvicorn and the endpoints: context, errors, guards, bodies, streams, logs and metrics.

uvicorn and h11 do the rest. A part that they or a proxy might do stays here because a test fails without it. For each
part: what uvicorn does alone, and the test below ``tests/server``.

* Accepting a few connections at a time (``run.UvicornServer``): 2,048 at once, until descriptors run out.
  ``test_limits_of_files::test_idle_connections_beyond_the_descriptors``
* ``IdleConnections`` give way: ``limit_concurrency`` refuses new clients and keeps idle ones.
  ``test_guards::test_idle_connections_keep_nobody_out``
* Deadline of a TLS handshake: one minute.
  ``test_protocol::test_a_handshake_that_never_comes_takes_no_place``
* Deadlines of a head and a body: none.
  ``test_guards::test_slow_senders_are_cut_off``
* Deadline of the next request: ``timeout_keep_alive`` ends with the first byte.
  ``test_protocol::test_a_connection_whose_body_came_late_is_not_kept_for_ever``
* Deadline of a body that nobody reads any more: none.
  ``test_protocol::test_a_body_that_drips_behind_its_answer_is_cut_off``
* Deadline of a reader: none.
  ``test_streams::test_a_reader_that_takes_nothing_is_cut_off``
* Answers to half-closed clients: it disconnects them.
  ``test_protocol::test_who_only_stops_sending_gets_the_answer``
* Reading while it answers: it pauses at a request that is sent ahead, and sees no disconnect.
  ``test_protocol::test_what_is_sent_ahead_hides_no_disconnect``
* A bound on requests sent ahead: none.
  ``test_protocol::test_what_is_sent_ahead_without_end_is_not_kept``
* Bytes behind the last request are dropped: it reports an error.
  ``test_protocol::test_an_empty_line_behind_a_body_harms_nothing``
* A refused body after ``Expect`` ends the connection: it takes the body for a request.
  ``test_protocol::test_a_refused_body_that_was_asked_for_first_ends_the_connection``
* Refusals in JSON: plain text.
  ``test_guards::test_what_is_not_http_gets_one_answer``
* A bound on a body's chunks (``StrictConnection``): none.
  ``attack/test_slow::test_a_body_comes_in_as_many_chunks_as_it_can_need``
* Folded headers are refused (``StrictConnection``): it joins them.
  ``test_guards::test_a_host_is_told_once_and_in_one_place``
* Requests with two ends are refused (``StrictConnection``): it takes one of them.
  ``test_protocol::test_what_readers_disagree_about_is_refused``
* ``logs.LogWriter``: a full pipe stops the event loop.
  ``test_log_writer::test_a_full_pipe_stops_nobody_and_what_is_left_out_is_counted``
"""
