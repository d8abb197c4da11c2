"""Tests of rdma-core's pyverbs suite that pass natively on Soft-RoCE and not by pollcore-run, or the other way round, each with the reason.

A name may be a pattern (fnmatch). pyverbs_suite.py fails when it finds a difference that is not here, and when something here does not differ.
"""
REASONS = {
    "tests.test_mr.MWTest.*": "memory windows are not served",
    "tests.test_qpex.QpExTestCase.test_qp_ex_rc_bind_mw": "memory windows are not served",
    "tests.test_mr.MRTest.test_mr_rereg_*": "Soft-RoCE of Linux 6.1 has no re-registration; pollcore-run registers anew, with other keys",
    "tests.test_parent_domain.ParentDomainTrafficTest.test_without_allocators_rc_traffic":
        "the provider of Soft-RoCE has no parent domains; those of pollcore-run stand for their protection domain",
}
# By pollcore-run these pass or fail by chance.
BY_CHANCE = {
    "tests.test_cq.CQTest.test_resize_cq": "the test shrinks the queue as soon as it has posted its sends, and their completions come later",
}
