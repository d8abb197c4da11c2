// Protection domains, memory regions and address handles.
#include "served_memory.hpp"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "conversions.hpp"
#include "exported.hpp"
#include "genuine.hpp"
#include "opened_device.hpp"
#include "refused_call.hpp"

namespace pollcore::served {
namespace {

Pd* make_pd(ibv_context* context) {
    auto pd = std::make_unique<Pd>();
    pd->context = context;
    pd->own = of(context).attachment->create_protection_domain(of(context).device->name);
    pd->handle = pd->own.id();
    return pd.release();
}

MemoryRegion registered(Pd& pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access) {
    Opened& opened = of(pd.context);
    return opened.attachment->register_memory_at((access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova, addr, length,
                                                 to_access(access), opened.device->name, &pd.own);
}

void show(Mr& mr, Pd& pd, void* addr, std::size_t length, unsigned access) noexcept {
    mr.context = pd.context;
    mr.pd = &pd;
    mr.addr = addr;
    mr.length = length;
    mr.handle = 0;
    mr.lkey = mr.region.lkey();
    mr.rkey = mr.region.rkey();
    mr.access = access;
}

ibv_mr* register_mr(const char* verb, ibv_pd* verbs, void* addr, std::size_t length, std::uint64_t iova,
                    unsigned access) noexcept {
    return made_by(verb, [&]() -> ibv_mr* {
        Pd& pd = of(verbs);
        auto mr = std::make_unique<Mr>();
        mr->region = registered(pd, addr, length, iova, access);
        show(*mr, pd, addr, length, access);
        mr->pd = verbs;
        pd.users.fetch_add(1, std::memory_order_relaxed);
        return mr.release();
    });
}

// Registers anew, and deregisters what was before: then an error changes nothing.
int reregister(Mr& mr, int flags, ibv_pd* verbs, void* addr, std::size_t length, int access) {
    constexpr int kFlags = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
    if (flags == 0 || (flags & ~kFlags) != 0) {
        errno = EINVAL;
        return IBV_REREG_MR_ERR_INPUT;
    }
    ibv_pd* const to = (flags & IBV_REREG_MR_CHANGE_PD) != 0 ? verbs : mr.pd;
    if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) == 0) {
        addr = mr.addr;
        length = mr.length;
    }
    const unsigned rights = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 ? static_cast<unsigned>(access) : mr.access;
    MemoryRegion renewed;
    if (const int error = error_of("ibv_rereg_mr()",
                                   [&] {
                                       renewed = registered(of(to), addr, length,
                                                            reinterpret_cast<std::uintptr_t>(addr), rights);
                                       mr.region.deregister();
                                   });
        error != 0) {
        errno = error;
        return IBV_REREG_MR_ERR_CMD;
    }
    of(mr.pd).users.fetch_sub(1, std::memory_order_relaxed);
    of(to).users.fetch_add(1, std::memory_order_relaxed);
    mr.region = std::move(renewed);
    show(mr, of(to), addr, length, rights);
    mr.pd = to;
    return 0;
}

// A thread domain tells a provider which locks it may leave out.
struct Td : ibv_td {};

}  // namespace

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* init) noexcept {
    return made_by("ibv_alloc_td()", [&]() -> ibv_td* {
        if (init->comp_mask != 0) {
            throw Error(EINVAL, "a thread domain has no such attribute");
        }
        auto td = std::make_unique<Td>();
        td->context = context;
        return td.release();
    });
}

int dealloc_td(ibv_td* td) noexcept {
    delete static_cast<Td*>(td);
    return 0;
}

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* init) noexcept {
    return made_by("ibv_alloc_parent_domain()", [&]() -> ibv_pd* {
        if (init->pd == nullptr || (init->comp_mask & ~std::uint32_t{IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT}) != 0) {
            throw Error(init->pd == nullptr ? EINVAL : EOPNOTSUPP, "a parent domain with allocators cannot be served");
        }
        auto parent = std::make_unique<Pd>();
        parent->context = context;
        parent->real = &of(init->pd);
        parent->handle = parent->real->handle;
        parent->real->users.fetch_add(1, std::memory_order_relaxed);
        return parent.release();
    });
}

}  // namespace pollcore::served

using namespace pollcore::served;

POLLCORE_VERBS_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_alloc_pd)(context);
    }
    return made_by("ibv_alloc_pd()", [&]() -> ibv_pd* { return make_pd(context); });
}

POLLCORE_VERBS_EXPORT int ibv_dealloc_pd(ibv_pd* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_dealloc_pd)(verbs);
    }
    Pd& pd = *static_cast<Pd*>(verbs);
    if (pd.users.load(std::memory_order_relaxed) != 0) {
        return EBUSY;
    }
    if (pd.real != &pd) {
        pd.real->users.fetch_sub(1, std::memory_order_relaxed);
    }
    delete &pd;
    return 0;
}

POLLCORE_VERBS_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) {
    if (!is_ours(pd->context)) {
        return POLLCORE_GENUINE(ibv_reg_mr)(pd, addr, length, access);
    }
    return register_mr("ibv_reg_mr()", pd, addr, length, reinterpret_cast<std::uintptr_t>(addr),
                       static_cast<unsigned>(access));
}

POLLCORE_VERBS_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                              int access) {
    if (!is_ours(pd->context)) {
        return POLLCORE_GENUINE(ibv_reg_mr_iova)(pd, addr, length, iova, access);
    }
    return register_mr("ibv_reg_mr_iova()", pd, addr, length, iova, static_cast<unsigned>(access));
}

POLLCORE_VERBS_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova,
                                               unsigned access) {
    if (!is_ours(pd->context)) {
        return POLLCORE_GENUINE(ibv_reg_mr_iova2)(pd, addr, length, iova, access);
    }
    return register_mr("ibv_reg_mr_iova2()", pd, addr, length, iova, access);
}

POLLCORE_VERBS_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* verbs, std::uint64_t offset, std::size_t length,
                                                std::uint64_t iova, int fd, int access) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_reg_dmabuf_mr)(verbs, offset, length, iova, fd, access);
    }
    return made_by("ibv_reg_dmabuf_mr()", [&]() -> ibv_mr* {
        Pd& pd = of(verbs);
        Opened& opened = of(pd.context);
        auto mr = std::make_unique<Mr>();
        mr->region =
            opened.attachment->register_dmabuf({.fd = fd, .offset = offset, .bytes = length}, iova,
                                               to_access(static_cast<unsigned>(access)), opened.device->name, &pd.own);
        show(*mr, pd, nullptr, length, static_cast<unsigned>(access));
        mr->pd = verbs;
        pd.users.fetch_add(1, std::memory_order_relaxed);
        return mr.release();
    });
}

POLLCORE_VERBS_EXPORT int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, std::size_t length, int access) {
    if (!is_ours(mr->context)) {
        return POLLCORE_GENUINE(ibv_rereg_mr)(mr, flags, pd, addr, length, access);
    }
    return reregister(of(mr), flags, pd, addr, length, access);
}

POLLCORE_VERBS_EXPORT int ibv_dereg_mr(ibv_mr* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_dereg_mr)(verbs);
    }
    Mr& mr = of(verbs);
    if (const int error = error_of("ibv_dereg_mr()", [&] { mr.region.deregister(); }); error != 0) {
        return error;
    }
    of(mr.pd).users.fetch_sub(1, std::memory_order_relaxed);
    delete &mr;
    return 0;
}

POLLCORE_VERBS_EXPORT ibv_ah* ibv_create_ah(ibv_pd* verbs, ibv_ah_attr* attr) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_create_ah)(verbs, attr);
    }
    return made_by("ibv_create_ah()", [&]() -> ibv_ah* {
        Pd& pd = of(verbs);
        Opened& opened = of(pd.context);
        if (attr->is_global == 0 && opened.device->link_layer == IBV_LINK_LAYER_ETHERNET) {
            throw pollcore::Error(EINVAL, "on RoCE an address handle is global: ibv_ah_attr::is_global and a GID");
        }
        auto ah = std::make_unique<Ah>();
        ah->context = verbs->context;
        ah->pd = verbs;
        ah->handle = 0;
        ah->address = opened.attachment->create_address_handle(to_address(*attr), opened.device->name, &pd.own);
        pd.users.fetch_add(1, std::memory_order_relaxed);
        return ah.release();
    });
}

POLLCORE_VERBS_EXPORT int ibv_destroy_ah(ibv_ah* verbs) {
    if (!is_ours(verbs->context)) {
        return POLLCORE_GENUINE(ibv_destroy_ah)(verbs);
    }
    Ah& ah = of(verbs);
    if (const int error = error_of("ibv_destroy_ah()", [&] { ah.address.destroy(); }); error != 0) {
        return error;
    }
    of(ah.pd).users.fetch_sub(1, std::memory_order_relaxed);
    delete &ah;
    return 0;
}

// The way back to the sender of a datagram: ibv_init_ah_from_wc(3) reads the GRH before the payload.
POLLCORE_VERBS_EXPORT int ibv_init_ah_from_wc(ibv_context* context, std::uint8_t port_num, ibv_wc* wc, ibv_grh* grh,
                                              ibv_ah_attr* attr) {
    if (!is_ours(context)) {
        return POLLCORE_GENUINE(ibv_init_ah_from_wc)(context, port_num, wc, grh, attr);
    }
    return way_back(*context, port_num, *wc, *grh, *attr);
}

POLLCORE_VERBS_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, std::uint8_t port_num) {
    if (!is_ours(pd->context)) {
        return POLLCORE_GENUINE(ibv_create_ah_from_wc)(pd, wc, grh, port_num);
    }
    ibv_ah_attr attr{};
    if (way_back(*pd->context, port_num, *wc, *grh, attr) != 0) {
        return nullptr;
    }
    return ibv_create_ah(pd, &attr);
}
