#include "unserved.hpp"

#include "exported.hpp"
#include "genuine.hpp"
#include "opened_device.hpp"
#include "refused_call.hpp"

namespace pollcore::served {
namespace {

int refuse(const char* verb, const char* what) noexcept {
    return error_of(verb, [&] { throw Error(EOPNOTSUPP, fmt::format("{} not served", what)); });
}
std::nullptr_t no_object(const char* verb, const char* what) noexcept {
    return errno = refuse(verb, what), nullptr;
}

ibv_xrcd* open_xrcd(ibv_context*, ibv_xrcd_init_attr*) noexcept {
    return no_object("ibv_open_xrcd()", "XRC is");
}
// Windows need regions whose handles the daemon knows, and programs register their memory themselves.
ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) noexcept {
    return no_object("ibv_alloc_mw()", "memory windows are");
}
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) noexcept {
    return EOPNOTSUPP;
}
int dealloc_mw(ibv_mw*) noexcept {
    return EOPNOTSUPP;
}
ibv_dm* alloc_dm(ibv_context*, ibv_alloc_dm_attr*) noexcept {
    return no_object("ibv_alloc_dm()", "device memory is");
}
ibv_wq* create_wq(ibv_context*, ibv_wq_init_attr*) noexcept {
    return no_object("ibv_create_wq()", "work queues of RSS are");
}
ibv_flow* create_flow(ibv_qp*, ibv_flow_attr*) noexcept {
    return no_object("ibv_create_flow()", "flow steering is");
}
ibv_counters* create_counters(ibv_context*, ibv_counters_init_attr*) noexcept {
    return no_object("ibv_create_counters()", "counters are");
}
int advise_mr(ibv_pd*, ibv_advise_mr_advice, std::uint32_t, ibv_sge*, std::uint32_t) noexcept {
    return refuse("ibv_advise_mr()", "on-demand paging is");
}

}  // namespace

void install_unserved(verbs_context& verbs) noexcept {
    verbs.open_xrcd = open_xrcd;
    verbs.alloc_dm = alloc_dm;
    verbs.create_wq = create_wq;
    verbs.ibv_create_flow = create_flow;
    verbs.create_counters = create_counters;
    verbs.advise_mr = advise_mr;
    ibv_context_ops& ops = verbs.context.ops;
    ops.alloc_mw = alloc_mw;
    ops.bind_mw = bind_mw;
    ops.dealloc_mw = dealloc_mw;
}

}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
    return is_ours(qp->context) ? refuse("ibv_attach_mcast()", "multicast is")
                                : POLLCORE_GENUINE(ibv_attach_mcast)(qp, gid, lid);
}

POLLCORE_VERBS_EXPORT int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t lid) {
    return is_ours(qp->context) ? EOPNOTSUPP : POLLCORE_GENUINE(ibv_detach_mcast)(qp, gid, lid);
}
