// One end of the connections in these tests: a device, a connector, queue pairs, and one buffer for all of them.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "connect/rdma_cm_connector.hpp"
#include "device/verbs/verbs_device.hpp"
#include "rxe_device.hpp"

namespace pollcore::rxe {

inline std::vector<std::byte> bytes(const std::string& text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return {first, first + text.size()};
}
inline std::string text(const std::vector<std::byte>& data) {
    return {reinterpret_cast<const char*>(data.data()), data.size()};
}

class Peer {
public:
    explicit Peer(std::unique_ptr<VerbsDevice> device) : device_(std::move(device)) {}

    VerbsDevice& device() { return *device_; }
    Connector& connector() { return *connector_; }
    /// Ends all connections, as a program does when it exits.
    void drop_connector() { connector_.reset(); }

    /// A new QP in INIT.
    ibv_qp* make_qp() {
        QpOptions options;
        options.pd = pd_.get();
        options.send_cq = options.recv_cq = cq_.get();
        options.cap = {16, 16, 1, 1, 0};
        qps_.emplace_back(device_->create_qp(options), DeviceDeleter<ibv_qp>{device_.get()});
        ibv_qp* qp = qps_.back().get();
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = device_->port();
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        device_->modify(qp, attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        return qp;
    }
    ConnectingQp connecting(ibv_qp* qp) {
        return {qp->qp_num, false, [this, qp](ibv_qp_attr& attr, int mask) { device_->modify(qp, attr, mask); }};
    }
    void destroy_qps() {
        for (auto& qp : qps_) {
            EXPECT_EQ(device_->destroy(qp.release()), 0);
        }
        qps_.clear();
    }

    /// Takes all pending events.
    void pump() {
        while (auto event = connector_->next_event()) {
            events.push_back(std::move(*event));
        }
    }
    std::deque<ConnectEvent> events;  ///< events that were taken, but not checked yet

    void post_receive(ibv_qp* qp, std::uint64_t wr_id) {
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory_.data()) + 2048, 1024, mr_->lkey};
        ibv_recv_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
    }
    void post_send(ibv_qp* qp, std::uint64_t wr_id, const std::string& message) {
        std::memcpy(memory_.data(), message.data(), message.size());
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory_.data()), static_cast<std::uint32_t>(message.size()),
                    mr_->lkey};
        ibv_send_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = IBV_SEND_SIGNALED;
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    }
    std::string received(std::uint32_t size) const { return {memory_.data() + 2048, size}; }
    /// Waits for the next completion. If none comes in 5 s, returns a completion with status IBV_WC_GENERAL_ERR and
    /// wr_id 0.
    ibv_wc completion() {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        ibv_wc wc{};
        while (ibv_poll_cq(cq_.get(), 1, &wc) == 0) {
            if (std::chrono::steady_clock::now() > deadline) {
                ADD_FAILURE() << "no completion came in 5 s";
                wc.status = IBV_WC_GENERAL_ERR;
                return wc;
            }
        }
        return wc;
    }
    ibv_cq* cq() { return cq_.get(); }

private:
    std::unique_ptr<VerbsDevice> device_;
    std::unique_ptr<Connector> connector_ = std::make_unique<RdmaCmConnector>(*device_);
    UniquePd pd_{device_->create_pd(), {device_.get()}};
    UniqueCq cq_{device_->create_cq({.cqe = 256}), {device_.get()}};
    std::array<char, 4096> memory_{};
    UniqueMr mr_{device_->register_memory(pd_.get(), memory_.data(), memory_.size(),
                                          reinterpret_cast<std::uintptr_t>(memory_.data()),
                                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
                 {device_.get()}};
    std::vector<UniqueQp> qps_;
};

/// Waits for the next event of `peer`, and also takes the events of `others`. Looks for events only when fd() is
/// readable, as a program does, so a connector that leaves fd() unreadable fails the test.
template <class... Others>
ConnectEvent next(Peer& peer, Others&... others) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (peer.events.empty()) {
        if (std::chrono::steady_clock::now() > deadline) {
            ADD_FAILURE() << "no event came in 10 s";
            return {};
        }
        std::array<Peer*, 1 + sizeof...(Others)> all{&peer, &others...};
        std::array<pollfd, all.size()> waiting{};
        for (std::size_t i = 0; i < all.size(); ++i) {
            waiting[i] = {all[i]->connector().fd(), POLLIN, 0};
        }
        (void)::poll(waiting.data(), waiting.size(), 100);
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (waiting[i].revents != 0) {
                all[i]->pump();
            }
        }
    }
    ConnectEvent event = std::move(peer.events.front());
    peer.events.pop_front();
    return event;
}

}  // namespace pollcore::rxe
