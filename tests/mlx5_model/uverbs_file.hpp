// An open /dev/infiniband/uverbsN: the answers of ib_uverbs and mlx5_ib, and the objects that a program has made
// through this descriptor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>

#include "completion_queue.hpp"
#include "file.hpp"
#include "hca_fabric.hpp"
#include "ioctl_attributes.hpp"

namespace mlx5_model {

/// Answers as Linux 6.1 does, but knows only the old commands (those of write(2)), the methods of UARs, and that which
/// registers a dma-buf. A descriptor that can be mapped stands for a dma-buf, for example of memfd_create(2). Every
/// other method gets EPROTONOSUPPORT, so the libraries send the old command through UVERBS_METHOD_INVOKE_WRITE.
class UverbsFile final : public File {
public:
    /// Returns a new descriptor, or -errno.
    static int open(Hca& hca);
    ~UverbsFile() override;

    void describe(struct stat& out) const override;
    long ioctl(unsigned long request, void* argument) override;
    void closed() override;

    // With the fabric's lock held:
    void raise(ibv_event_type type, std::uint64_t element, const Reported& reported);
    void forget(const Reported& reported);
    void raise_srq_limit(const SharedReceiveQueue& srq);
    /// Drops the unread events of the channels; unread asynchronous events can still be read. Reads of an empty event
    /// queue then fail with EIO.
    void end_events();

private:
    struct Srq {
        std::shared_ptr<SharedReceiveQueue> queue;
        std::uint64_t user_handle = 0;
        Reported events = none_reported();
    };
    using Attributes = IoctlAttributes;

    explicit UverbsFile(Hca& hca) : hca_(hca) {}

    // These return 0 or an error number.
    int carry_out(const Attributes& attributes, std::uint16_t object, std::uint16_t method);
    int invoke_write(const Attributes& attributes);
    int get_context(const Attributes& attributes);
    int query_device(const Attributes& attributes);
    int query_device_extended(const Attributes& attributes);
    int query_port(const Attributes& attributes);
    int allocate_uar(const Attributes& attributes);
    int destroy_uar(const Attributes& attributes);

    int allocate_pd(const Attributes& attributes);
    int deallocate_pd(const Attributes& attributes);
    int register_memory(const Attributes& attributes);
    int register_dmabuf(const Attributes& attributes);
    int deregister_memory(const Attributes& attributes);
    int allocate_window(const Attributes& attributes);
    int deallocate_window(const Attributes& attributes);
    int create_ah(const Attributes& attributes);
    int destroy_ah(const Attributes& attributes);

    int create_channel(const Attributes& attributes);
    int create_cq(const Attributes& attributes, bool extended);
    int modify_cq(const Attributes& attributes);
    int destroy_cq(const Attributes& attributes);

    int create_qp(const Attributes& attributes);
    int modify_qp(const Attributes& attributes);
    int query_qp(const Attributes& attributes);
    int destroy_qp(const Attributes& attributes);
    int create_srq(const Attributes& attributes);
    int modify_srq(const Attributes& attributes);
    int query_srq(const Attributes& attributes);
    int destroy_srq(const Attributes& attributes);

    Hca& hca_;
    std::shared_ptr<EventQueue> async_events_;
    std::vector<std::weak_ptr<EventQueue>> channels_;
    volatile std::uint8_t* uars_ = nullptr;
    std::set<std::uint32_t> uars_in_use_;
    bool polls_hooked_ = false;
    std::uint32_t next_handle_ = 1;
    std::set<std::uint32_t> pds_;
    /// A mapping of a dma-buf.
    struct Mapping {
        void* at = nullptr;
        std::size_t bytes = 0;
        Mapping(void* mapped, std::size_t length) noexcept : at(mapped), bytes(length) {}
        ~Mapping();
        Mapping(const Mapping&) = delete;
        Mapping& operator=(const Mapping&) = delete;
    };
    std::map<std::uint32_t, std::unique_ptr<Mapping>> dmabufs_;  // by the region's handle
    std::map<std::uint32_t, std::uint32_t> ahs_;                 // the PD of each address handle, by handle
    std::map<std::uint32_t, std::shared_ptr<CompletionQueue>> cqs_;
    std::map<std::uint32_t, std::shared_ptr<QueuePair>> qps_;
    std::map<std::uint32_t, Srq> srqs_;
};

}  // namespace mlx5_model
